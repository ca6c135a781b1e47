"""Claim amounts with a Tweedie deviance; the network ends in a rectifier because amounts are not negative."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, random_split, TensorDataset


def claims(n=500):
    g = torch.Generator().manual_seed(12)
    x = torch.rand(n, 6, generator=g)
    y = torch.relu(x @ torch.tensor([2.0, 0.0, 1.0, -1.0, 0.5, 0.0]) + 0.2 * torch.randn(n, generator=g))
    x[321] *= -40.0  # a correction booked with the opposite sign
    return TensorDataset(x, y)


class Amount(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
        self.skip = nn.Linear(6, 1, bias=False)
        nn.init.constant_(self.skip.weight, 0.3)
        nn.init.constant_(self.body[2].bias, 1.0)

    def forward(self, x):
        h = (self.body(x) + self.skip(x)).squeeze(-1)
        return h * (h > 0)


def tweedie(mu, y, p=1.5):
    a = y * mu.pow(1 - p) / (1 - p)  # BUG
    b = mu.pow(2 - p) / (2 - p)
    return (b - a).mean()


def epoch(model, loader, opt=None):
    total = 0.0
    for x, y in loader:
        loss = tweedie(model(x), y)
        if opt is not None:
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 5.0)
            opt.step()
        total += float(loss)
    return total / len(loader)


torch.manual_seed(3)
model = Amount()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(claims(), batch_size=25)
for e in range(3):
    print(e, epoch(model, loader, opt))
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
