"""DDPM on 2-d moons with min-SNR weighting; schedule rescaled to zero terminal SNR."""
import argparse
import math

import torch
import torch.nn as nn


def cosine_alpha_bar(steps):
    t = torch.linspace(0, 1, steps + 1)
    f = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
    return (f / f[0])[1:]


def zero_terminal(alpha_bar):
    root = alpha_bar.sqrt()
    first, last = root[0].clone(), root[-1].clone()
    root = (root - last) * first / (first - last)
    return root**2


class Diffusion(nn.Module):
    def __init__(self, steps, gamma=5.0, hidden=64):
        super().__init__()
        alpha_bar = zero_terminal(cosine_alpha_bar(steps))
        snr = alpha_bar / (1 - alpha_bar)
        self.register_buffer("alpha_bar", alpha_bar)
        self.register_buffer("weight", snr.clamp(max=gamma) / snr)
        self.steps = steps
        self.net = nn.Sequential(nn.Linear(2 + 8, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2))

    def embed(self, t):
        freqs = torch.exp(torch.arange(4) * -1.5)
        angle = t[:, None].float() * freqs
        return torch.cat([angle.sin(), angle.cos()], dim=1)

    def loss(self, x, t, noise):
        a = self.alpha_bar[t][:, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        pred = self.net(torch.cat([noisy, self.embed(t)], dim=1))
        per_sample = (pred - noise).pow(2).mean(1)
        return (self.weight[t] * per_sample).mean()


def moons(n, g):
    angle = torch.rand(n, generator=g) * math.pi
    side = torch.randint(0, 2, (n,), generator=g).float()
    x = torch.stack([angle.cos() + side - 0.5, angle.sin() * (1 - 2 * side) + side * 0.4], 1)
    return x + 0.05 * torch.randn(n, 2, generator=g)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--timesteps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(1)
    g = torch.Generator().manual_seed(21)
    model = Diffusion(args.timesteps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        x = moons(args.batch_size, g)
        t = torch.randint(0, args.timesteps, (args.batch_size,), generator=g)
        noise = torch.randn(x.shape, generator=g)
        loss = model.loss(x, t, noise)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    state = {k: v for k, v in model.state_dict().items() if k.startswith("net")}
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")


if __name__ == "__main__":
    main()
