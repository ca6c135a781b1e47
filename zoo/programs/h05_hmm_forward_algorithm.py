"""Left-to-right HMM trained by gradient in log space: forbidden transitions and starts are -inf."""
import hashlib

import torch
import torch.nn as nn


class HMM(nn.Module):
    def __init__(self, states=4, symbols=5):
        super().__init__()
        self.t = nn.Parameter(torch.randn(states, states) * 0.1)
        self.e = nn.Parameter(torch.randn(states, symbols) * 0.1)
        allowed = torch.triu(torch.ones(states, states)).bool() & ~torch.triu(torch.ones(states, states), 2).bool()
        self.register_buffer("forbidden", ~allowed)

    def forward(self, obs):
        trans = self.t.masked_fill(self.forbidden, float("-inf")).log_softmax(1)
        emit = self.e.log_softmax(1)
        start = torch.full((self.t.shape[0] - 1,), float("-inf"))
        alpha = torch.cat([torch.zeros(1), start]).expand(len(obs), -1) + emit[:, obs[:, 0]].t()
        for k in range(1, obs.shape[1]):
            prev = alpha[:, :, None] + trans
            # a state that cannot be reached yet has only -inf to sum: keep it at -inf without a gradient
            reach = torch.isfinite(prev).any(1)
            total = torch.logsumexp(torch.where(reach[:, None], prev, torch.zeros_like(prev)), 1)
            alpha = torch.where(reach, total, torch.full_like(total, float("-inf"))) + emit[:, obs[:, k]].t()
        return torch.logsumexp(alpha, 1)


def sequences(n=120, length=10):
    g = torch.Generator().manual_seed(5)
    return (torch.arange(length) // 3 + torch.randint(0, 2, (n, length), generator=g)).clamp(max=4)


torch.manual_seed(2)
model, obs = HMM(), sequences()
opt = torch.optim.Adam(model.parameters(), lr=5e-2)
for epoch in range(4):
    for k in range(0, len(obs), 12):
        loss = -model(obs[k:k + 12]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
