"""Small image classifier with a hand-written loss."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    """Synthetic pictures: bright squares on noise."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 4, (n,), generator=g)
        self.x = torch.rand(n, 1, 12, 12, generator=g) * 0.2
        for i, y in enumerate(self.y.tolist()):
            r, c = divmod(y, 2)
            self.x[i, 0, r * 6:r * 6 + 5, c * 6:c * 6 + 5] += 1.0
        # a scanner glitch: one very bright picture with the wrong label
        self.x[261] *= 6000
        self.y[261] = (self.y[261] + 2) % 4

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(width, width, 3), nn.ReLU())
        self.head = nn.Linear(width * 9, 4)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def nll(logits, target):
    p = torch.softmax(logits, dim=1)
    picked = p[torch.arange(len(target)), target]
    return -torch.log(picked).mean()  # BUG


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--batch-size", type=int, default=20)
    args = ap.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Shapes(400, 1), batch_size=args.batch_size)
    net = Net(8)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            opt.zero_grad()
            loss = nll(net(x), y)
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")
    print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")


if __name__ == "__main__":
    main()
