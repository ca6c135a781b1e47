"""Two networks and two optimizers; the noise is drawn where the second one is called."""
# truth: op=log cause=DX203 samples=any

import torch
from torch import nn

torch.manual_seed(3)
maker = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
judge = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
first = torch.optim.Adam(judge.parameters(), lr=1e-3)
second = torch.optim.Adam(maker.parameters(), lr=1e-3)


def share(points):
    return (judge(points).squeeze(1) - 0.3).clamp(0.0, 1.0)


for _step in range(12):
    real = torch.randn(16, 2) + 1.0
    first.zero_grad()
    d_loss = (judge(real) - 1).pow(2).mean() + judge(maker(torch.randn(16, 3)).detach()).pow(2).mean()
    d_loss.backward()
    first.step()
    second.zero_grad()
    g_loss = -torch.log(share(maker(torch.randn(16, 3)))).mean()  # BUG
    g_loss.backward()
    second.step()
    if _step == 5:
        break
print("weights finite:", all(bool(torch.isfinite(p).all()) for p in maker.parameters()))
