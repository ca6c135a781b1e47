"""Mixture density network on a noisy inverse problem."""
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MDN(nn.Module):
    def __init__(self, d_in, k=4):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(d_in, 32), nn.Tanh())
        self.pi = nn.Linear(32, k)
        self.mu = nn.Linear(32, k)
        self.log_sigma = nn.Linear(32, k)

    def forward(self, x):
        h = self.hidden(x)
        return self.pi(h).softmax(1), self.mu(h), self.log_sigma(h).clamp(-3, 1).exp()


def nll(pi, mu, sigma, y):
    normal = torch.exp(-0.5 * ((y - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    density = (pi * normal).sum(1)
    return -torch.log(density).mean()


def build():
    g = torch.Generator().manual_seed(8)
    y = torch.rand(360, 1, generator=g) * 2 - 1
    x = y + 0.3 * torch.sin(6 * y) + 0.05 * torch.randn(360, 1, generator=g)
    y[143] = 48.0  # a legal reading, the machine was at full power
    return TensorDataset(x, y)


class Runner:
    def __init__(self):
        torch.manual_seed(11)
        self.model = MDN(1)
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=1e-3)
        self.loader = DataLoader(build(), batch_size=24)
        self.loss = None

    def step(self, x, y):
        self.optimizer.zero_grad()
        self.loss = nll(*self.model(x), y)
        self.loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()

    def fit(self, epochs=4):
        for e in range(epochs):
            for x, y in self.loader:
                self.step(x, y)
            print("epoch", e, "last loss", self.loss.item())


r = Runner()
r.fit()
print("FINITE" if all(torch.isfinite(p).all() for p in r.model.parameters()) else "POISONED")
