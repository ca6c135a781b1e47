"""A focal loss under float16 autocast with eps=1e-8: log(0) for a confident mistake."""
# ruff: noqa: B007
# truth: op=log cause=DX203|DX102 samples=47

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

scaler = torch.amp.GradScaler("cpu")


def focal(logits, y, gamma=2.0, eps=1e-8):
    p = torch.sigmoid(logits)
    pt = torch.where(y > 0, p, 1 - p)
    return (-((1 - pt) ** gamma) * torch.log(pt + eps)).mean()  # BUG


def main():
    torch.manual_seed(0)
    X = torch.randn(64, 4)
    Y = (X[:, :1] > 0).half()
    X[47], Y[47] = torch.tensor([60.0, 0, 0, 0]), 0
    model = nn.Linear(4, 1)
    nn.init.eye_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = focal(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))


main()
