"""Predict the rotation between two frames (axis-angle, Rodrigues)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def hat(v):
    zero = torch.zeros_like(v[:, 0])
    return torch.stack([zero, -v[:, 2], v[:, 1], v[:, 2], zero, -v[:, 0], -v[:, 1], v[:, 0], zero], -1).view(-1, 3, 3)


def rodrigues(v):
    theta = v.norm(dim=-1)
    small = theta < 1e-6
    a = torch.where(small, torch.ones_like(theta), torch.sin(theta) / theta)
    b = torch.where(small, torch.full_like(theta, 0.5), (1 - torch.cos(theta)) / theta ** 2)
    k = hat(v)
    return torch.eye(3) + a[:, None, None] * k + b[:, None, None] * (k @ k)


class Frames(Dataset):
    def __init__(self, n=720):
        g = torch.Generator().manual_seed(6)
        self.first = torch.randn(n, 10, generator=g)
        motion = 0.4 * torch.randn(n, 3, generator=g)
        mix = torch.randn(3, 10, generator=g)
        motion[540] = 0
        self.second = self.first + motion @ mix
        self.rotation = rodrigues(motion)

    def __len__(self):
        return len(self.first)

    def __getitem__(self, i):
        return self.first[i], self.second[i], self.rotation[i]


class Relative(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32, bias=False), nn.Tanh(), nn.Linear(32, 3, bias=False))

    def forward(self, a, b):
        return rodrigues(self.net(b - a))


def main():
    torch.manual_seed(3)
    model = Relative()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(Frames(), batch_size=12, shuffle=True)
    for epoch in range(2):
        for a, b, r in loader:
            loss = (model(a, b) - r).pow(2).sum((1, 2)).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch} frobenius {loss.item():.4f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    main()
