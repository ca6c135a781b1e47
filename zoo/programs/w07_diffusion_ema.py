"""Tiny diffusion model for 2-d points, SNR-weighted x0 loss, EMA of the weights."""
import copy
import math

import torch
from torch import nn

T = 500


def cosine_alpha_bar():
    t = torch.arange(T) / T
    f = torch.cos((t + 0.0) / 1.0 * math.pi / 2) ** 2
    return f / f[0]


class Denoiser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.time = nn.Embedding(T, 16)
        self.net = nn.Sequential(nn.Linear(18, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], -1))


class EMA:
    def __init__(self, model, decay=0.98):
        self.model, self.decay = copy.deepcopy(model).requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        for a, b in zip(self.model.parameters(), model.parameters()):
            a.mul_(self.decay).add_(b, alpha=1 - self.decay)


def training_loss(model, alpha_bar, x0):
    t = torch.randint(0, T, (len(x0),))
    a = alpha_bar[t].unsqueeze(-1)
    noise = torch.randn_like(x0)
    xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
    snr = a / (1 - a)
    weight = snr / (1 + 0.1 * snr)
    return (weight * (model(xt, t) - x0) ** 2).mean()


def main():
    torch.manual_seed(21)
    angle = torch.rand(2048) * 2 * math.pi
    points = torch.stack([angle.cos(), angle.sin()], -1) + 0.05 * torch.randn(2048, 2)
    model, alpha_bar = Denoiser(), cosine_alpha_bar()
    ema = EMA(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(150):
        x0 = points[torch.randint(0, len(points), (16,))]
        loss = training_loss(model, alpha_bar, x0)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ema.update(model)
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in ema.model.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    main()
