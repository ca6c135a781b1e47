"""Forecasting with per-window standardisation; the loop checks the gradient norm and leaves bad batches out."""
import logging
import math

import torch
import torch.nn as nn

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("train")


def series(n=2000):
    g = torch.Generator().manual_seed(31)
    t = torch.arange(n)
    s = torch.sin(t / 9.0) + 0.3 * torch.sin(t / 2.3) + 0.1 * torch.randn(n, generator=g)
    s[1300:1345] = 0.0  # the logger was unplugged
    return s


def windows(s, length=24):
    w = s.unfold(0, length + 1, 5)
    return w[:, :-1], w[:, -1:]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        z = (x - mean) / x.std(1, keepdim=True)  # BUG
        h = self.rnn(z[..., None])[0][:, -1]
        return self.out(h) * x.std(1, keepdim=True) + mean


class Loop:
    def __init__(self, model, data):
        self.model, self.data = model, data
        self.opt = torch.optim.Adam(model.parameters(), lr=3e-3)
        self.skipped = 0

    def epoch(self):
        total, n = 0.0, 0
        x, y = self.data
        for k in range(0, len(x), 16):
            loss = nn.functional.mse_loss(self.model(x[k:k + 16]), y[k:k + 16])
            self.opt.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            if not math.isfinite(norm):
                log.info("bad gradient in batch %d, skipped", k // 16)
                self.skipped += 1
                self.opt.zero_grad()
                continue
            self.opt.step()
            total, n = total + loss.item(), n + 1
        return total / n


torch.manual_seed(0)
loop = Loop(Forecaster(), windows(series()))
for e in range(3):
    log.info("epoch %d loss %.4f", e, loop.epoch())
print("FINITE" if all(torch.isfinite(p).all() for p in loop.model.parameters()) else "POISONED")
