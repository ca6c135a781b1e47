"""Noise prediction with min-SNR weights and a zero terminal signal; EMA of the weights."""
import copy

import torch
import torch.nn as nn

T = 120


def schedule():
    betas = torch.linspace(1e-4, 0.08, T)
    root = torch.cumprod(1 - betas, 0).sqrt()
    root = (root - root[-1]) * root[0] / (root[0] - root[-1])  # rescaled: the last step is pure noise
    return root.pow(2)


class Denoiser(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.time = nn.Embedding(T, 16)
        self.net = nn.Sequential(nn.Linear(d + 16, 48), nn.SiLU(), nn.Linear(48, d))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1))


class Diffusion:
    def __init__(self, model):
        self.model, self.alpha_bar = model, schedule()

    def weights(self, t, gamma=5.0):
        snr = self.alpha_bar[t] / (1 - self.alpha_bar[t])
        return snr.clamp(max=gamma) / snr

    def loss(self, x):
        t = torch.randint(0, T, (len(x),))
        noise = torch.randn_like(x)
        a = self.alpha_bar[t].unsqueeze(1)
        pred = self.model(a.sqrt() * x + (1 - a).sqrt() * noise, t)
        return (self.weights(t) * (pred - noise).pow(2).mean(1)).mean()


class EMA:
    def __init__(self, model, decay=0.99):
        self.shadow, self.decay = copy.deepcopy(model), decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(self.decay).add_(p, alpha=1 - self.decay)


def main():
    torch.manual_seed(5)
    model = Denoiser()
    diffusion, ema = Diffusion(model), EMA(model)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 60)
    data = torch.randn(2000, 12) * 0.5 + 1
    for step in range(60):
        batch = data[torch.randint(0, len(data), (10,))]
        loss = diffusion.loss(batch)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        ema.update(model)
        if step % 15 == 0:
            print(step, loss.item())
    good = all(torch.isfinite(p).all() for m in (model, ema.shadow) for p in m.parameters())
    print("FINITE" if good else "POISONED")


main()
