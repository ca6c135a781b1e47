"""Stochastic weight averaging: for the check at the end of each epoch the averaged weights are put in and taken out again."""
import hashlib

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


def data(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(400, 10, generator=g)
    return TensorDataset(x, (x[:, 0] - x[:, 1] * x[:, 2]).unsqueeze(1))


class Averager:
    def __init__(self, model):
        self.model, self.n, self.avg, self.held = model, 0, None, None

    def update(self):
        now = [p.detach().clone() for p in self.model.parameters()]
        self.avg = now if self.avg is None else [a + (b - a) / (self.n + 1) for a, b in zip(self.avg, now)]
        self.n += 1

    def __enter__(self):
        self.held = [p.detach().clone() for p in self.model.parameters()]
        for p, a in zip(self.model.parameters(), self.avg):
            p.data.copy_(a)

    def __exit__(self, *_):
        for p, h in zip(self.model.parameters(), self.held):
            p.data.copy_(h)


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
averager = Averager(model)
test = data(2).tensors
for epoch in range(6):
    for group in opt.param_groups:
        group["lr"] = 0.01 if epoch < 3 else 0.04  # the high constant rate of SWA
    for x, y in DataLoader(data(1), batch_size=20, shuffle=True, generator=torch.Generator().manual_seed(epoch)):
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    averager.update()
    with averager, torch.no_grad():
        print("epoch", epoch, "train", round(loss.item(), 4), "test of the average", round(nn.functional.mse_loss(model(test[0]), test[1]).item(), 4))
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
