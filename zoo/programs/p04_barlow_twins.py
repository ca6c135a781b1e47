"""Barlow Twins on camera frames: two views of every frame, cross-correlation of the standardised embeddings."""
import torch
import torch.nn as nn


class Projector(nn.Module):
    def __init__(self, din=30, d=12):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(din, 48), nn.ReLU(), nn.Linear(48, d))

    def forward(self, x):
        return self.net(x)


def barlow(z1, z2, lam=0.01):
    n, d = z1.shape
    z1 = (z1 - z1.mean(0)) / z1.std(0)  # BUG
    z2 = (z2 - z2.mean(0)) / z2.std(0)
    c = z1.T @ z2 / n
    on = (torch.diagonal(c) - 1).pow(2).sum()
    off = c.pow(2).sum() - torch.diagonal(c).pow(2).sum()
    return on + lam * off


def frames(n=320):
    g = torch.Generator().manual_seed(66)
    x = torch.rand(n, 40, generator=g)
    x[176:192] = 0.5  # a test picture while the camera was serviced
    return x


def views(x, g):
    a = torch.randint(0, 10, (1,), generator=g).item()
    b = torch.randint(0, 10, (1,), generator=g).item()
    return x[:, a:a + 30], x[:, b:b + 30].flip(1)


if __name__ == "__main__":
    torch.manual_seed(66)
    x, g = frames(), torch.Generator().manual_seed(1)
    model = Projector()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
    for epoch in range(3):
        for step, k in enumerate(range(0, len(x), 16)):
            v1, v2 = views(x[k:k + 16], g)
            loss = barlow(model(v1), model(v2))
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 5 == 0:
                print(f"{epoch}/{step} loss {loss.item():.4f}")
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
