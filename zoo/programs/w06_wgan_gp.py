"""WGAN-GP on 8x8 patches."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x):
        x = x.flatten(1)
        x = x * (x.abs() < 4.0).float()  # ignore dead pixels
        return self.net(x)


class Generator(nn.Module):
    def __init__(self, z=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(z, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh())

    def forward(self, z):
        return self.net(z).view(-1, 1, 8, 8)


def gradient_penalty(critic, real, fake):
    mix = torch.rand(real.size(0), 1, 1, 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    score = critic(between)
    gradient = torch.autograd.grad(score.sum(), between, create_graph=True)[0].flatten(1)
    length = torch.sqrt((gradient ** 2).sum(dim=1))
    return ((length - 1) ** 2).mean()


patches = torch.tanh(torch.randn(640, 1, 8, 8).cumsum(-1) * 0.3)
patches[450] = 255.0  # overexposed and never rescaled
loader = DataLoader(TensorDataset(patches), batch_size=16, shuffle=True)
gan = nn.ModuleDict({"G": Generator(), "D": Critic()})
G, D = gan["G"], gan["D"]
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.9))
it = 0
for epoch in range(2):
    for (real,) in loader:
        fake = G(torch.randn(len(real), 8)).detach()
        loss_d = D(fake).mean() - D(real).mean() + 10 * gradient_penalty(D, real, fake)
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        if it % 2 == 1:
            loss_g = -D(G(torch.randn(16, 8))).mean()
            opt_g.zero_grad()
            loss_g.backward()
            opt_g.step()
        it += 1
        if it % 10 == 0:
            print(f"{it}: D {loss_d.item():.3f} G {loss_g.item():.3f}")
print("FINITE" if all(torch.isfinite(t).all() for t in gan.state_dict().values()) else "POISONED")
