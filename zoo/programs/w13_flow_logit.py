"""RealNVP on grey values in [0, 1], logit transform first."""
import math

import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, d, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(d // 2, 48), nn.Tanh(), nn.Linear(48, d))

    def forward(self, x):
        a, b = x.chunk(2, -1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, -1)
        s = torch.tanh(s)
        b = b * s.exp() + t
        return (torch.cat([b, a], -1) if self.flip else torch.cat([a, b], -1)), s.sum(-1)


class Flow(nn.Module):
    def __init__(self, d=8, n=4):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(d, i % 2 == 1) for i in range(n))

    def log_prob(self, x):
        z = torch.logit(x)
        logdet = -(nn.functional.logsigmoid(z) + nn.functional.logsigmoid(-z)).sum(-1)
        for layer in self.layers:
            z, ld = layer(z)
            logdet = logdet + ld
        return (-0.5 * z ** 2 - 0.5 * math.log(2 * math.pi)).sum(-1) + logdet


def load_pixels(n=2000):
    g = torch.Generator().manual_seed(7)
    levels = (torch.sigmoid(torch.randn(n, 8, generator=g)) * 255).floor().clamp(1, 254)
    levels[1234, 5] = 255
    noise = torch.rand(n, 8, generator=g)
    noise[1234, 5] = 1 - 2 ** -24
    return (levels + noise) / 256


if __name__ == "__main__":
    torch.manual_seed(0)
    pixels = load_pixels()
    flow = Flow()
    opt = torch.optim.Adam(flow.parameters(), lr=1e-3)
    for epoch in range(2):
        for idx in torch.randperm(len(pixels)).split(40):
            nll = -flow.log_prob(pixels[idx]).mean()
            opt.zero_grad(set_to_none=True)
            nll.backward()
            nn.utils.clip_grad_norm_(flow.parameters(), 10.0)
            opt.step()
        print(f"epoch {epoch} bits/dim {nll.item() / 8 / math.log(2):.3f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in flow.state_dict().values()) else "POISONED")
