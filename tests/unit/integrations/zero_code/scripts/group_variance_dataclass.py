"""Batches are dataclasses; the variance penalty of a group with a single member is NaN."""
# truth: op=var cause=DX202 samples=any

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Batch:
    x: Tensor
    y: Tensor
    group: Tensor


def batches(n):
    g = torch.Generator().manual_seed(2)
    for i in range(n):
        group = torch.arange(9) % 3
        if i == 13:
            group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2])
        yield Batch(torch.randn(9, 4, generator=g), torch.randn(9, generator=g), group)


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.body(x).squeeze(-1)


class Learner:
    def __init__(self):
        self.model = Regressor()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.history = []

    def loss(self, batch):
        pred = self.model(batch.x)
        error = (pred - batch.y) ** 2
        penalty = 0.0
        for k in batch.group.unique():
            penalty = penalty + pred[batch.group == k].var()  # BUG
        return error.mean() + 0.1 * penalty

    def fit(self):
        for batch in batches(25):
            self.opt.zero_grad()
            loss = self.loss(batch)
            loss.backward()
            self.opt.step()
            self.history.append(float(loss))


torch.manual_seed(0)
learner = Learner()
learner.fit()
print("weights finite:", all(p.isfinite().all().item() for p in learner.model.parameters()))
