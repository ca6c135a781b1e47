"""The function that computes the loss writes a line to a file: run again, it must not."""

# ruff: noqa: B007, SIM115
# truth: op=div cause=DX201 samples=31 line=any remedy=any
import csv

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
log = open("log.csv", "w", newline="")
writer = csv.writer(log)


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 1)

    def forward(self, x):
        return self.f(x)


model = Regressor()


def loss_of(batch):
    x, y, n = batch
    loss = (((model(x).squeeze(1) - y) ** 2) / n).mean()  # BUG
    writer.writerow([loss.item()])
    return loss


X, Y, N = torch.randn(40, 4), torch.randn(40), torch.randint(1, 5, (40,)).float()
N[31] = 0
opt = torch.optim.Adam(model.parameters(), 1e-3)
for epoch in range(2):
    for batch in DataLoader(TensorDataset(X, Y, N), batch_size=5):
        opt.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        opt.step()
log.close()
print("lines", len(open("log.csv").readlines()))
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
