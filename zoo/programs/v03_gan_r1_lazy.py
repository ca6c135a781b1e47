"""A GAN with lazy R1 penalty, spectral norm, two rates and an averaged generator; gradients of the wrong player are thrown away."""
import hashlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(3)
G = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
D = nn.Sequential(spectral_norm(nn.Linear(10, 32)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(32, 1)))
averaged = AveragedModel(G, multi_avg_fn=get_ema_multi_avg_fn(0.95))
og = torch.optim.Adam(G.parameters(), 1e-3, betas=(0.0, 0.99))
od = torch.optim.Adam(D.parameters(), 4e-3, betas=(0.0, 0.99))
data = torch.randn(600, 10, generator=torch.Generator().manual_seed(1)) * torch.linspace(0.01, 100, 10)


def discriminator_step(real, i):
    with torch.no_grad():
        fake = G(torch.randn(len(real), 6))
    loss = F.softplus(D(fake)).mean() + F.softplus(-D(real)).mean()
    if i % 4 == 0:
        x = real.detach().requires_grad_()
        (g,) = torch.autograd.grad(D(x).sum(), x, create_graph=True)
        loss = loss + 5 * g.pow(2).sum(1).mean()
    od.zero_grad()
    loss.backward()
    od.step()
    return loss.item()


def generator_step(n):
    loss = F.softplus(-D(G(torch.randn(n, 6)))).mean()
    og.zero_grad()
    loss.backward()
    og.step()
    averaged.update_parameters(G)
    return loss.item()


for i in range(40):
    real = data[torch.randint(0, len(data), (24,))]
    d, g = discriminator_step(real, i), generator_step(24)
print(d, g)
state = [*G.state_dict().values(), *D.state_dict().values(), *averaged.state_dict().values()]
print("FINITE" if all(torch.isfinite(t).all() for t in state) else "POISONED")
print(hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in state)).hexdigest())
