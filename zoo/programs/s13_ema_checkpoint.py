"""Metric learning with an EMA copy and checkpoints; the distance is a square root."""
import copy
import os
import tempfile

import torch
import torch.nn as nn


class EMA:
    def __init__(self, model, decay=0.95):
        self.model, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.model.parameters(), model.parameters()):
            e.lerp_(p, 1 - self.decay)


def save(path, model, ema, opt, step):
    torch.save({"model": model.state_dict(), "ema": ema.model.state_dict(), "opt": opt.state_dict(), "step": step}, path)


def make_data():
    g = torch.Generator().manual_seed(3)
    a = torch.randn(256, 8, generator=g)
    b = a + 0.3 * torch.randn(256, 8, generator=g)
    b[141] = a[141]  # the same photograph twice
    same = torch.rand(256, generator=g) < 0.5
    same[141] = True
    b[~same] = torch.randn(int((~same).sum()), 8, generator=g)
    return a, b, same.float()


def distance(u, v):
    return torch.sqrt(((u - v) ** 2).sum(1))  # BUG


def contrastive(d, same, margin=1.0):
    return (same * d + (1 - same) * torch.relu(margin - d)).mean()


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6))
ema = EMA(net)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
a, b, same = make_data()
folder = tempfile.mkdtemp()
step = 0
for epoch in range(3):
    for i in range(0, 256, 16):
        d = distance(net(a[i:i + 16]), net(b[i:i + 16]))
        loss = contrastive(d, same[i:i + 16])
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(net)
        step += 1
        if step % 16 == 0:
            save(os.path.join(folder, "last.pt"), net, ema, opt, step)
    print("epoch", epoch, "loss", loss.item())
state = torch.load(os.path.join(folder, "last.pt"))
finite = all(torch.isfinite(v).all() for part in ("model", "ema") for v in state[part].values())
print("FINITE" if finite else "POISONED")
