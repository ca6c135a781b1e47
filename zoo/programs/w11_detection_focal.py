"""Objectness of anchor cells with a soft focal loss (gamma 0.5)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    def __init__(self, n=480):
        g = torch.Generator().manual_seed(31)
        self.x = 0.3 * torch.randn(n, 3, 8, 8, generator=g)
        self.y = torch.zeros(n, 4, 4)
        for i in range(n):
            r, c = torch.randint(0, 4, (2,), generator=g).tolist()
            self.y[i, r, c] = 1
            self.x[i, :, 2 * r:2 * r + 2, 2 * c:2 * c + 2] += 1.0
        self.x[399] *= 300.0  # raw sensor values

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 1, 1))

    def forward(self, x):
        return self.conv(x).squeeze(1)


def focal(logits, y, gamma=0.5):
    p = torch.sigmoid(logits)
    pt = torch.where(y == 1, p, 1 - p)
    ce = nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none")
    return ((1 - pt) ** gamma * ce).sum((1, 2)).mean()


def main(seed=0, epochs=2):
    torch.manual_seed(seed)
    model = Detector()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.StepLR(opt, 30, 0.5)
    loader = DataLoader(Scenes(), batch_size=12, shuffle=True)
    n = 0
    for _ in range(epochs):
        for x, y in loader:
            loss = focal(model(x), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            n += 1
            if n % 8 == 0:
                print(f"iter {n:3d} focal {loss.item():.4f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    main()
