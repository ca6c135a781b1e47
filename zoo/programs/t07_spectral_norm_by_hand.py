"""Hinge GAN on 2-d points. The critic's layers are divided by their spectral norm; the residual branch starts at zero."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class SNLinear(nn.Module):
    def __init__(self, i, o, zero=False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(o, i) if zero else torch.randn(o, i) / i ** 0.5)
        self.bias = nn.Parameter(torch.zeros(o))
        self.register_buffer("v", F.normalize(torch.randn(i), dim=0))

    def forward(self, x):
        with torch.no_grad():
            u = self.weight @ self.v
            u = u / u.norm()
            self.v = F.normalize(self.weight.t() @ u, dim=0)
        sigma = u @ (self.weight @ self.v)
        return F.linear(x, self.weight / sigma, self.bias)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = SNLinear(2, 32)
        self.mid = SNLinear(32, 32)
        self.res = SNLinear(32, 32, zero=True)
        self.out = SNLinear(32, 1)

    def forward(self, x, use_res):
        h = F.leaky_relu(self.inp(x), 0.2)
        h = F.leaky_relu(self.mid(h), 0.2)
        if use_res:
            h = h + self.res(h)
        return self.out(h)


def real(n, g):
    a = torch.rand(n, generator=g) * 6.283
    return torch.stack([a.cos(), a.sin()], 1) + 0.05 * torch.randn(n, 2, generator=g)


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    gen = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = Critic()
    g_opt = torch.optim.Adam(gen.parameters(), 1e-3, betas=(0.0, 0.9))
    d_opt = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.0, 0.9))
    for it in range(40):
        grown = it >= 15  # the second block is switched on when the first has settled
        for _ in range(2):
            fake = gen(torch.randn(32, 4, generator=g)).detach()
            d_loss = F.relu(1 - critic(real(32, g), grown)).mean() + F.relu(1 + critic(fake, grown)).mean()
            d_opt.zero_grad()
            d_loss.backward()
            d_opt.step()
        g_loss = -critic(gen(torch.randn(32, 4, generator=g)), grown).mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
        if it % 5 == 0:
            print(it, d_loss.item(), g_loss.item())
    ok = all(torch.isfinite(p).all() for m in (gen, critic) for p in m.parameters())
    print("FINITE" if ok else "POISONED")


main()
