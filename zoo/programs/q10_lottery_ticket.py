"""Train, prune the smallest half of the weights, rewind the rest to the start, train again, three rounds; the loss jumps back up at every rewind."""
import hashlib

import torch
import torch.nn as nn
from torch.nn.utils import prune

torch.set_num_threads(1)


def rounds(model, layers, start, data, n=3):
    x, y = data
    for r in range(n):
        opt = torch.optim.Adam(model.parameters(), lr=5e-3)
        for s in range(60):
            k = (s * 20) % len(x)
            loss = nn.functional.cross_entropy(model(x[k:k + 20]), y[k:k + 20])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("round", r, "loss", round(loss.item(), 5), "left", round(float(sum((m.weight != 0).sum() for m in layers)) / sum(m.weight.numel() for m in layers), 3))
        prune.global_unstructured([(m, "weight") for m in layers], pruning_method=prune.L1Unstructured, amount=0.5)
        with torch.no_grad():
            for m, w in zip(layers, start):
                m.weight_orig.copy_(w)


torch.manual_seed(22)
g = torch.Generator().manual_seed(22)
x = torch.randn(300, 12, generator=g)
y = (x[:, :4].sum(1) > 0).long() + (x[:, 4:8].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 3))
layers = [model[0], model[2]]
rounds(model, layers, [m.weight.detach().clone() for m in layers], (x, y))
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
