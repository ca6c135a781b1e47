"""RealNVP on tiny grey patches, logit-transformed pixels (Dinh et al.)."""
import math

import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, d, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(d // 2, 32), nn.Tanh(), nn.Linear(32, d))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, dim=1)
        s = torch.tanh(s)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], dim=1), s.sum(1)


class RealNVP(nn.Module):
    def __init__(self, d=16, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(d, i % 2 == 1) for i in range(layers))

    def preprocess(self, x):
        y = torch.log(x) - torch.log(1 - x)
        log_det = -(torch.log(x) + torch.log(1 - x)).sum(1)
        return y, log_det

    def forward(self, x):
        z, log_det = self.preprocess(x)
        for layer in self.layers:
            z, ld = layer(z)
            log_det = log_det + ld
        prior = -0.5 * (z**2).sum(1) - 0.5 * z.shape[1] * math.log(2 * math.pi)
        return prior + log_det


def patches(n=256, d=16):
    g = torch.Generator().manual_seed(9)
    base = torch.rand(n, 1, generator=g) * 200 + 20
    raw = (base + 12 * torch.randn(n, d, generator=g)).clamp(1, 254).round()
    noise = torch.rand(n, d, generator=g)
    x = (raw + noise) / 256
    x[141, 6] = 1.0  # a saturated pixel that came in without noise
    return x


class Runner:
    def __init__(self):
        self.flow = RealNVP()
        self.data = patches()
        self.opt = torch.optim.Adam(self.flow.parameters(), lr=2e-3, betas=(0.9, 0.99))

    def epoch(self, batch=16):
        order = torch.arange(len(self.data))
        losses = []
        for chunk in order.split(batch):
            self.opt.zero_grad(set_to_none=True)
            nll = -self.flow(self.data[chunk]).mean()
            bits = nll / (math.log(2) * self.data.shape[1])
            bits.backward()
            self.opt.step()
            losses.append(bits.detach())
        return torch.stack(losses).mean().item()

    def run(self, epochs=2):
        for e in range(epochs):
            print(f"epoch {e} bits/dim {self.epoch():.4f}")


if __name__ == "__main__":
    torch.manual_seed(7)
    runner = Runner()
    runner.run()
    state = runner.flow.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
