"""Flow matching on two moons; the times of every sample are drawn once and stored with it."""
import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=3)
    return p.parse_args()


def moons(n, g):
    a = torch.rand(n, generator=g) * math.pi
    side = (torch.rand(n, generator=g) < 0.5).float()
    x = torch.stack([a.cos() * (1 - 2 * side) + side, a.sin() * (1 - 2 * side) + 0.5 * side], 1)
    return x + 0.05 * torch.randn(n, 2, generator=g)


def build_dataset(n=640, seed=0):
    g = torch.Generator().manual_seed(seed)
    x1 = moons(n, g)
    x0 = torch.randn(n, 2, generator=g)
    t = torch.randint(0, 1000, (n,), generator=g) / 1000
    t[407] = 1.0
    return TensorDataset(x0, x1, t[:, None])


class VelocityNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], 1))


def target_velocity(xt, x1, t):
    return (x1 - xt) / (1 - t)  # BUG


def train_one_epoch(model, loader, opt):
    running = 0.0
    for x0, x1, t in loader:
        xt = (1 - t) * x0 + t * x1
        v = target_velocity(xt, x1, t)
        loss = ((model(xt, t) - v) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
    return running / len(loader)


if __name__ == "__main__":
    args = get_args()
    torch.manual_seed(args.seed)
    model = VelocityNet()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    loader = DataLoader(build_dataset(), batch_size=args.batch_size, shuffle=False)
    for epoch in range(args.epochs):
        print(f"epoch {epoch}: {train_one_epoch(model, loader, opt):.4f}")
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
