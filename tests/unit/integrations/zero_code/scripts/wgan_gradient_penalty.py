"""WGAN with a gradient penalty; where the critic is flat, the norm of its gradient has no slope."""
# truth: op=sqrt|norm|pow cause=DX301 samples=any

import torch
from torch import autograd, nn, optim

torch.manual_seed(0)
Z, D = 4, 3
gen = nn.Sequential(nn.Linear(Z, 16), nn.ReLU(), nn.Linear(16, D))
critic = nn.Sequential(nn.Linear(D, 16), nn.ReLU(), nn.Linear(16, 1))
nn.init.constant_(critic[0].bias, -0.2)
opt_g = optim.Adam(gen.parameters(), lr=1e-4, betas=(0.0, 0.9))
opt_c = optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))


def gradient_penalty(critic, real, fake):
    eps = torch.rand(real.size(0), 1)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
    scores = critic(mixed)
    grads = autograd.grad(scores, mixed, torch.ones_like(scores), create_graph=True, retain_graph=True)[0]
    norm = torch.sqrt((grads**2).sum(dim=1))  # BUG
    return ((norm - 1) ** 2).mean()


def sample_real(step, n=12):
    real = torch.randn(n, D) * 2 + 3
    if step == 7:
        real[4] = 0.0
    return real


for step in range(16):
    real = sample_real(step)
    with torch.no_grad():
        fake = gen(torch.randn(len(real), Z)) if step != 7 else torch.zeros_like(real)
    loss_c = critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty(critic, real, fake)
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()
    if step % 4 == 3:
        loss_g = -critic(gen(torch.randn(12, Z))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
params = [*gen.parameters(), *critic.parameters()]
print("weights finite:", all(p.isfinite().all().item() for p in params))
