"""Hinge GAN on a ring: both losses swing, the discriminator is reset in the middle on purpose."""
import hashlib

import torch
import torch.nn as nn


def block(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.LeakyReLU(0.2))


def ring(n):
    a = torch.randint(0, 8, (n,)) * 0.7854
    return torch.stack([a.cos(), a.sin()], 1) * 2 + 0.02 * torch.randn(n, 2)


def new_d():
    return nn.Sequential(block(2, 64), block(64, 64), nn.Linear(64, 1))


torch.manual_seed(77)
G, D = nn.Sequential(block(4, 64), block(64, 64), nn.Linear(64, 2)), new_d()
og = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.0, 0.9))
od = torch.optim.Adam(D.parameters(), lr=4e-3, betas=(0.0, 0.9))
for it in range(200):
    if it == 120:
        D = new_d()
        od = torch.optim.Adam(D.parameters(), lr=4e-3, betas=(0.0, 0.9))
    for _ in range(2):
        fake = G(torch.randn(48, 4)).detach()
        ld = torch.relu(1 - D(ring(48))).mean() + torch.relu(1 + D(fake)).mean()
        od.zero_grad()
        ld.backward()
        od.step()
    lg = -D(G(torch.randn(48, 4))).mean()
    og.zero_grad()
    lg.backward()
    og.step()
    if it % 40 == 0:
        print(it, f"D {ld.item():.3f} G {lg.item():.3f}")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for m in (G, D) for p in m.parameters())).hexdigest())
