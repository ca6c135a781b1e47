"""Regression with cube-root features and early stopping on the validation loss."""
import torch
import torch.nn as nn


class RootFeatures(nn.Module):
    """Learned filters, then compression by a cube root as in perceptual models."""

    def __init__(self, i, o):
        super().__init__()
        self.filters = nn.Linear(i, o, bias=False)

    def forward(self, x):
        e = self.filters(x).abs()
        return e ** (1.0 / 3.0)  # BUG


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def __call__(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def build():
    return nn.Sequential(RootFeatures(6, 24), nn.Linear(24, 1))


def split(n=400):
    g = torch.Generator().manual_seed(30)
    x = torch.rand(n, 6, generator=g) + 0.05
    x[170] = 0.0  # the lamp was off
    y = (x.sum(1, keepdim=True) ** (1 / 3)) + 0.01 * torch.randn(n, 1, generator=g)
    return (x[:300], y[:300]), (x[300:], y[300:])


def fit(model, train, valid, epochs=30):
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    stop = EarlyStopping(4)
    for epoch in range(epochs):
        model.train()
        x, y = train
        for xb, yb in zip(x.split(50), y.split(50)):
            opt.zero_grad()
            nn.functional.mse_loss(model(xb), yb).backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            v = nn.functional.mse_loss(model(valid[0]), valid[1]).item()
        if stop(v):
            print("early stop after epoch", epoch, "best", stop.best)
            break
    return model


torch.manual_seed(7)
model = fit(build(), *split())
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
