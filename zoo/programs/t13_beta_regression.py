"""Occupancy rates in [0, 1] modelled with a Beta likelihood."""
import torch
import torch.nn as nn
from torch.distributions import Beta
from torch.utils.data import DataLoader, TensorDataset


class BetaHead(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, 24), nn.SiLU())
        self.ab = nn.Linear(24, 2)

    def forward(self, x):
        a, b = (nn.functional.softplus(self.ab(self.trunk(x))) + 1.0).unbind(1)
        return Beta(a, b)


def rates():
    g = torch.Generator().manual_seed(18)
    x = torch.randn(400, 5, generator=g)
    y = torch.sigmoid(x[:, 0] + 0.3 * torch.randn(400, generator=g))
    y[229] = 0.0  # closed for renovation
    return TensorDataset(x, y)


def fit(model, epochs=3):
    opt = torch.optim.NAdam(model.parameters(), lr=2e-3)
    loader = DataLoader(rates(), batch_size=20, shuffle=True, generator=torch.Generator().manual_seed(3))
    history = []
    for _ in range(epochs):
        for x, y in loader:
            dist = model(x)
            loss = -dist.log_prob(y).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            history.append(loss.item())
    return history


torch.manual_seed(1)
model = BetaHead(5)
try:
    history = fit(model)
    print("first", history[0], "last", history[-1])
except ValueError as error:
    print("stopped:", str(error)[:60])
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
