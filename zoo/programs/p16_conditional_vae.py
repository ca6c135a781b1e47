"""Conditional VAE with a learned prior. Scales come from softplus."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class CVAE(nn.Module):
    def __init__(self, dx=10, dc=3, dz=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dx + dc, 32), nn.ReLU(), nn.Linear(32, 2 * dz))
        self.prior = nn.Linear(dc, 2 * dz)
        self.dec = nn.Sequential(nn.Linear(dz + dc, 32), nn.ReLU(), nn.Linear(32, dx))
        with torch.no_grad():
            self.prior.weight[5:] = -0.2

    def forward(self, x, c):
        mq, sq = self.enc(torch.cat([x, c], 1)).chunk(2, 1)
        mp, sp = self.prior(c).chunk(2, 1)
        sq, sp = F.softplus(sq), F.softplus(sp)
        z = mq + sq * torch.randn_like(sq)
        return self.dec(torch.cat([z, c], 1)), (mq, sq, mp, sp)


def kl(mq, sq, mp, sp):
    return torch.log(sp) - torch.log(sq) + (sq ** 2 + (mq - mp) ** 2) / (2 * sp ** 2) - 0.5  # BUG


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", default=3, type=int)
    p.add_argument("--beta", default=0.1, type=float)
    a = p.parse_args(argv)
    g = torch.Generator().manual_seed(60)
    c = torch.rand(320, 3, generator=g)
    x = torch.sin(c @ torch.randn(3, 10, generator=g) * 2) + 0.1 * torch.randn(320, 10, generator=g)
    c[214, 0] = 1990.0  # the year instead of its share of the century
    torch.manual_seed(60)
    model = CVAE()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(a.epochs):
        for k in range(0, 320, 16):
            out, stats = model(x[k:k + 16], c[k:k + 16])
            loss = F.mse_loss(out, x[k:k + 16]) + a.beta * kl(*stats).sum(1).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
        print("epoch", epoch, "loss", loss.item())
    print("FINITE" if all(torch.isfinite(q).all() for q in model.parameters()) else "POISONED")


main()
