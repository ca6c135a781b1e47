"""Two views through one encoder; a view whose units are all dead has no direction."""
# truth: op=div cause=DX201 samples=50

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32, bias=False), nn.ReLU(), nn.Linear(32, 8, bias=False))

    def forward(self, x):
        return self.net(x)


def nt_xent(z1, z2, tau=0.5):
    z = torch.cat([z1, z2])
    z = z / z.norm(dim=1, keepdim=True)  # BUG
    sim = z @ z.t() / tau
    sim = sim - 1e9 * torch.eye(len(z))
    n = len(z1)
    target = torch.cat([torch.arange(n) + n, torch.arange(n)])
    return F.cross_entropy(sim, target)


def augment(x):
    return x * (torch.rand_like(x) > 0.1)


torch.manual_seed(0)
X = torch.randn(96, 12)
X[50] = 0.0
loader = DataLoader(TensorDataset(X), batch_size=12, shuffle=True, drop_last=True)
encoder = Encoder()
opt = torch.optim.Adam(encoder.parameters(), lr=3e-4)
step = 0
for epoch in range(3):
    for (x,) in loader:
        x1, x2 = augment(x), augment(x)
        z1 = encoder(x1)
        z2 = encoder(x2)
        loss = nt_xent(z1, z2)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
    print("epoch", epoch, round(loss.item(), 3))
print("weights finite:", all(p.isfinite().all().item() for p in encoder.parameters()))
