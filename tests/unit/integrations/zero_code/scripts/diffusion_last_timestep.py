"""A small diffusion model that predicts x0; the schedule reaches zero at the last time step."""
# truth: op=div cause=DX201 samples=row

import torch
import torch.nn.functional as F
from torch import nn

T = 50
betas = torch.linspace(1e-4, 1.0, T)
alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)


class Denoiser(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.time = nn.Embedding(T, 16)
        self.inp = nn.Linear(dim, 16)
        self.out = nn.Sequential(nn.SiLU(), nn.Linear(16, dim))

    def forward(self, x, t):
        return self.out(self.inp(x) + self.time(t))


def q_sample(x0, t, noise):
    a = alphas_cumprod[t][:, None]
    return a.sqrt() * x0 + (1 - a).sqrt() * noise


def p_losses(denoise_model, x0, t):
    noise = torch.randn_like(x0)
    x_t = q_sample(x0, t, noise)
    predicted = denoise_model(x_t, t)
    a = alphas_cumprod[t][:, None]
    x0_hat = (x_t - (1 - a).sqrt() * predicted) / a.sqrt()  # BUG
    return F.smooth_l1_loss(predicted, noise) + 1e-4 * F.l1_loss(x0_hat, x0)


torch.manual_seed(3)
data = torch.randn(512, 8)
model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(40):
    idx = torch.randint(0, len(data), (8,))
    batch = data[idx]
    t = torch.randint(0, T - 1, (8,))
    if step == 21:
        t[5] = T - 1
    loss = p_losses(model, batch, t)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print("step", step, "loss", loss.item())
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
