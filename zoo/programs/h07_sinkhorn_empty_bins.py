"""Learned ground cost with entropic optimal transport in log space; empty histogram bins have log mass -inf."""
import hashlib

import torch
import torch.nn as nn


class Cost(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.place = nn.Parameter(torch.linspace(0, 1, bins)[:, None] + 0.1 * torch.randn(bins, 2))

    def forward(self):
        return (self.place[:, None] - self.place[None]).pow(2).sum(-1)


def sinkhorn(cost, a, b, eps=0.3, rounds=8):
    la, lb = a.log(), b.log()  # -inf where a bin is empty
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    k = -cost / eps
    for _ in range(rounds):
        f = la - torch.logsumexp(k + g[:, None, :], 2)
        g = lb - torch.logsumexp(k.t() + f[:, None, :], 2)
    plan = torch.exp(f[:, :, None] + k + g[:, None, :])
    return (plan * cost).sum((1, 2))


def pairs(n=128, bins=8):
    g = torch.Generator().manual_seed(7)
    h = torch.poisson(torch.rand(n, 2, bins, generator=g) * 2, generator=g)
    h[:, :, 3] += 1
    h = h / h.sum(2, keepdim=True)
    return h, (h[:, 0] - h[:, 1]).cumsum(1).abs().sum(1) / 8


torch.manual_seed(5)
cost, (h, y) = Cost(8), pairs()
opt = torch.optim.Adam(cost.parameters(), lr=1e-2)
for epoch in range(4):
    for k in range(0, len(h), 16):
        loss = nn.functional.l1_loss(sinkhorn(cost(), h[k:k + 16, 0], h[k:k + 16, 1]), y[k:k + 16])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
print("FINITE" if all(torch.isfinite(p).all() for p in cost.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in cost.parameters())).hexdigest())
