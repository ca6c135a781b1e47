"""Imbalanced classification; class weights are taken from each batch. Bad steps are counted and the run goes on."""
import sys

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 4


def dataset():
    g = torch.Generator().manual_seed(40)
    y = torch.multinomial(torch.tensor([0.4, 0.3, 0.2, 0.1]), 480, replacement=True, generator=g)
    for k in range(0, 480, 24):
        y[k:k + 4] = torch.arange(4)  # every batch has one of each
    y[264:288][y[264:288] == 3] = 0
    x = torch.randn(480, 12, generator=g) + nn.functional.one_hot(y, CLASSES).float() @ torch.randn(CLASSES, 12, generator=g)
    return TensorDataset(x, y)


def batch_weights(y):
    counts = torch.bincount(y, minlength=CLASSES).float()
    weights = len(y) / counts
    return weights / weights.sum()


def one_step(model, opt, x, y):
    loss = nn.functional.cross_entropy(model(x), y, weight=batch_weights(y))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if torch.isnan(loss):
        raise FloatingPointError("loss is nan")
    return loss.item()


def main():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, CLASSES))
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    failed = 0
    for epoch in range(3):
        losses = []
        for x, y in DataLoader(dataset(), batch_size=24):
            try:
                losses.append(one_step(model, opt, x, y))
            except FloatingPointError as error:
                failed += 1
                print(error, file=sys.stderr)
        print(epoch, sum(losses) / max(len(losses), 1), "failed so far", failed)
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


if __name__ == "__main__":
    main()
