"""A function makes the whole step; its loss logs and counts."""

# truth: op=exp cause=DX204 samples=7
import logging

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("train")
counter = {"calls": 0}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 2)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.l(x)


def heteroscedastic(out, y):
    mu, s = out[:, 0], out[:, 1]
    counter["calls"] += 1
    log.info("loss call %d", counter["calls"])
    return (torch.exp(-s) * (y - mu) ** 2 + s).mean()  # BUG


def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    out = model(x)
    loss = heteroscedastic(out, y)
    loss.backward()
    optimizer.step()
    return {"loss": loss.item()}


torch.manual_seed(0)
model = Net()
X, Y = torch.randn(40, 3), torch.randn(40)
X[7] = -400 * torch.sign(model.l.weight[1].detach())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
history = [train_step(model, optimizer, b) for _ in range(2) for b in DataLoader(TensorDataset(X, Y), batch_size=5)]
print("calls", counter["calls"], model.calls, len(history))
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
