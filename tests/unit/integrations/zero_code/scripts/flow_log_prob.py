"""A flow trained through a method of the model; sample 40 holds a zero."""

# ruff: noqa: B007
# truth: op=log cause=DX203 samples=40
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))
        self.shift = nn.Linear(3, 3)

    def log_prob(self, x):
        z = torch.log(x) * self.scale.exp()  # BUG
        z = z + 0.1 * self.shift(z)
        return (-0.5 * z**2 - 0.5 * math.log(2 * math.pi)).sum(1) + self.scale.sum()


def train(flow, loader, steps, opt):
    it = iter(loader)
    for step in range(steps):
        try:
            (x,) = next(it)
        except StopIteration:
            it = iter(loader)
            (x,) = next(it)
        loss = -flow.log_prob(x).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


torch.manual_seed(0)
X = torch.rand(64, 3) + 0.05
X[40, 1] = 0
flow = Flow()
train(flow, DataLoader(TensorDataset(X), batch_size=8, shuffle=True), 16, torch.optim.Adam(flow.parameters(), 1e-3))
print("weights finite:", all(p.isfinite().all().item() for p in flow.parameters()))
