"""Tabular data with gaps: a dataset that divides 0 by 0 in numpy and mends it, NaN targets left out by a mask."""
import hashlib

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    def __init__(self, n=160):
        rng = np.random.default_rng(3)
        self.clicks, self.views = rng.poisson(1.0, (n, 6)), rng.poisson(1.5, (n, 6))
        self.y = rng.normal(size=(n, 3)).astype(np.float32)
        self.y[rng.random((n, 3)) < 0.4] = np.nan

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        with np.errstate(all="ignore"):
            rate = self.clicks[i] / self.views[i]
        known = np.isfinite(rate)
        return {"x": np.concatenate([np.where(known, rate, 0), known]).astype(np.float32), "y": self.y[i]}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))

    def forward(self, x):
        return self.f(x)


def masked_mse(pred, y):
    ok = ~torch.isnan(y)
    err = (pred - torch.nan_to_num(y)) ** 2
    return (err * ok).sum() / ok.sum().clamp(min=1)


def main():
    torch.manual_seed(6)
    model = Model()
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CyclicLR(opt, 1e-3, 0.1, step_size_up=6)
    for epoch in range(3):
        for batch in DataLoader(Table(), batch_size=16, shuffle=True, num_workers=0):
            loss = masked_mse(model(batch["x"]), batch["y"])
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        print(epoch, loss.item())
    state = list(model.state_dict().values())
    print("FINITE" if all(torch.isfinite(t).all() for t in state) else "POISONED")
    print(hashlib.sha256(b"".join(t.numpy().tobytes() for t in state)).hexdigest())


main()
