"""Relative camera rotation from pairs of frame descriptors: axis-angle output, Rodrigues formula, loss on the matrices."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def hat(r):
    x, y, z = r.unbind(-1)
    o = torch.zeros_like(x)
    return torch.stack([torch.stack([o, -z, y], -1), torch.stack([z, o, -x], -1), torch.stack([-y, x, o], -1)], -2)


def rodrigues(r):
    theta = torch.sqrt((r * r).sum(-1) + 1e-24)
    small = theta < 1e-6
    a = torch.where(small, torch.ones_like(theta), torch.sin(theta) / theta)
    t2 = (r * r).sum(-1)
    b = torch.where(small, torch.full_like(theta, 0.5), (1 - torch.cos(theta)) / t2)
    k = hat(r)
    return torch.eye(3) + a[:, None, None] * k + b[:, None, None] * (k @ k)


class Odometry(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 32, bias=False)
        self.b = nn.Linear(32, 3, bias=False)

    def forward(self, before, after):
        return self.b(torch.tanh(self.a(after - before)))


def frames(n=280):
    g = torch.Generator().manual_seed(71)
    before = torch.randn(n, 16, generator=g)
    step = torch.randn(n, 16, generator=g) * 0.4
    step[204] = 0.0  # the recorder wrote the same frame twice
    truth = torch.tanh(step @ torch.randn(16, 3, generator=g) * 0.3)
    return TensorDataset(before, before + step, truth)


def main():
    torch.manual_seed(7)
    net = Odometry()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    loader = DataLoader(frames(), batch_size=14)
    for epoch in range(3):
        for before, after, truth in loader:
            loss = (rodrigues(net(before, after)) - rodrigues(truth)).pow(2).sum((1, 2)).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
        print(epoch, loss.item())
    print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")


main()
