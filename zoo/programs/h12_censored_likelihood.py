"""Uniform-width interval model: samples outside the support have log likelihood -inf and are replaced by a penalty; Accelerate loop."""
import hashlib

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


class Interval(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 2))

    def forward(self, x):
        mid, width = self.f(x).unbind(1)
        return mid, nn.functional.softplus(width) + 0.1


def interval_loss(mid, width, y):
    inside = (y - mid).abs() <= width / 2
    with torch.no_grad():
        logp = torch.where(inside, -width.log(), torch.full_like(width, float("-inf")))
    smooth = torch.where(inside, width.log(), 2 * ((y - mid).abs() - width / 2))
    return smooth.mean(), logp.mean()


def main():
    acc = Accelerator(cpu=True)
    torch.manual_seed(12)
    g = torch.Generator().manual_seed(13)
    x = torch.randn(240, 3, generator=g)
    y = x[:, 0] + torch.rand(240, generator=g) - 0.5
    y[::37] += 25.0  # outliers are part of the game
    model = Interval()
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    model, opt, loader = acc.prepare(model, opt, DataLoader(TensorDataset(x, y), batch_size=16))
    for epoch in range(3):
        exact = 0.0
        for xb, yb in loader:
            loss, logp = interval_loss(*model(xb), yb)
            acc.backward(loss)
            opt.step()
            opt.zero_grad()
            exact += logp.item()
        acc.print(epoch, loss.item(), "exact log likelihood", exact / len(loader))
    acc.print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())


if __name__ == "__main__":
    main()
