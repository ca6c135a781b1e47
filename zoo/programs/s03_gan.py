"""Toy GAN in one dimension with two optimizers and the original losses."""
import torch
import torch.nn as nn

torch.manual_seed(11)
BATCH, Z = 32, 4

class Pixels(nn.Module):
    """The generator works in pixel units, the data were normalised. Oh well."""

    def forward(self, x):
        return x * 255.0


G = nn.Sequential(nn.Linear(Z, 32), nn.ReLU(), nn.Linear(32, 2), Pixels())
D = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1), nn.Sigmoid())
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=3e-2, betas=(0.5, 0.999))


def real_batch():
    angle = torch.rand(BATCH) * 6.2832
    return torch.stack([angle.cos(), angle.sin()], 1)  + torch.tensor([1.5, -1.5])


def d_loss(real, fake):
    pr, pf = D(real), D(fake)
    return -(torch.log(pr + 1e-12) + torch.log(1 - pf + 1e-12)).mean()


def g_loss(fake):
    return torch.log(1 - D(fake)).mean() - torch.log(D(fake)).mean()  # BUG


for step in range(150):
    real = real_batch()
    z = torch.randn(BATCH, Z)
    # critic first, several times as in the paper
    for _ in range(3):
        opt_d.zero_grad()
        loss_d = d_loss(real, G(z).detach())
        loss_d.backward()
        opt_d.step()
    # then the generator
    opt_g.zero_grad()
    loss_g = g_loss(G(torch.randn(BATCH, Z)))
    loss_g.backward()
    opt_g.step()
    if step % 25 == 0:
        print(f"{step:4d}  D {loss_d.item():.4f}  G {loss_g.item():.4f}")

ok = all(torch.isfinite(p).all() for net in (G, D) for p in net.parameters())
print("FINITE" if ok else "POISONED")
