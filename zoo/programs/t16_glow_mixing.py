"""A small normalizing flow: additive coupling and a learned mixing matrix whose determinant enters the likelihood."""
import math

import torch
import torch.nn as nn

D = 48


class Mixing(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d, d) * 0.02)

    def forward(self, x):
        det = torch.det(self.weight)
        return x @ self.weight.t(), torch.log(det.abs())


class Coupling(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d // 2, 32), nn.ReLU(), nn.Linear(32, d // 2))

    def forward(self, x):
        a, b = x.chunk(2, 1)
        return torch.cat([a, b + self.net(a)], 1), torch.zeros(())


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([Coupling(D), Mixing(D), Coupling(D)])

    def forward(self, x):
        total = 0.0
        for step in self.steps:
            x, ld = step(x)
            total = total + ld
        return -0.5 * (x * x).sum(1) - 0.5 * D * math.log(2 * math.pi) + total


def main():
    torch.manual_seed(30)
    flow = Flow()
    opt = torch.optim.Adamax(flow.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(2)
    x = torch.randn(512, D, generator=g) @ torch.randn(D, D, generator=g) / D ** 0.5
    for epoch in range(3):
        for xb in x.split(64):
            loss = -flow(xb).mean() / D
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("bits", epoch, loss.item())
    print("FINITE" if all(torch.isfinite(p).all() for p in flow.parameters()) else "POISONED")


main()
