"""Several views through one encoder in a list comprehension; a view without direction."""

# ruff: noqa: B007
# truth: op=div cause=DX201 samples=any
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Views(Dataset):
    def __init__(self):
        self.x = torch.randn(60, 6)
        self.x[33] = 0

    def __len__(self):
        return 60

    def __getitem__(self, i):
        return [self.x[i], self.x[i] * 2, self.x[i] * 0.5], i


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
losses = []
for epoch in range(2):
    for views, idx in DataLoader(Views(), batch_size=6):
        zs = [net(v) for v in views]
        zs = [z / z.norm(dim=1, keepdim=True) for z in zs]  # BUG
        losses = []
        for a in range(3):
            for b in range(a):
                losses.append((2 - 2 * (zs[a] * zs[b]).sum(1)).mean())
        total = torch.stack(losses).sum()
        opt.zero_grad()
        total.backward()
        opt.step()
    sched.step()
print("weights finite:", all(p.isfinite().all().item() for p in net.parameters()))
