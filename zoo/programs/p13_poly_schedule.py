"""Segmentation-style poly schedule, set by hand every iteration. The number of iterations was counted for another batch size."""
import warnings

import numpy as np
import torch
import torch.nn as nn

warnings.filterwarnings("ignore")
BASE_LR, POWER, MAX_ITER = 0.05, 0.9, 90


def adjust_learning_rate(optimizer, it):
    lr = BASE_LR * np.power(np.float64(1 - it / MAX_ITER), POWER)  # BUG
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def data(n=520):
    g = torch.Generator().manual_seed(20)
    x = torch.randn(n, 10, generator=g)
    return x, (x[:, :3].sum(1) > 0).long()


torch.manual_seed(7)
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=BASE_LR, momentum=0.9, weight_decay=1e-4)
x, y = data()
it = 0
for epoch in range(2):
    for k in range(0, 520, 10):
        lr = adjust_learning_rate(optimizer, it)
        loss = nn.functional.cross_entropy(model(x[k:k + 10]), y[k:k + 10])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        it += 1
        if it % 10 == 0:
            print(f"iter {it} lr {lr:.5f} loss {loss.item():.4f}")
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
