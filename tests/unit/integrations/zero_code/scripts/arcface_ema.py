"""An angular margin: the angle to the own prototype is zero and acos has no slope there."""
# ruff: noqa: B007, B905
# truth: op=acos|arccos cause=DX302 samples=14

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ArcHead(nn.Module):
    def __init__(self, dim, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(classes, dim))

    def forward(self, emb, label):
        cos = F.normalize(emb) @ F.normalize(self.weight).t()
        theta = torch.acos(cos)  # BUG
        margin = torch.zeros_like(theta).scatter(1, label[:, None], 0.2)
        return torch.cos(theta + margin) * 8.0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.head = ArcHead(3, 3)

    def forward(self, x, y):
        return self.head(x * self.scale, y)


@torch.no_grad()
def update_ema(ema, model, decay=0.99):
    for e, p in zip(ema.parameters(), model.parameters()):
        e.mul_(decay).add_(p, alpha=1 - decay)


torch.manual_seed(0)
X, Y = torch.randn(48, 3), torch.randint(0, 3, (48,))
X[14] = torch.tensor([0.0, 0.0, 5.0])
model = Model()
model.head.weight.requires_grad_(False)
ema = copy.deepcopy(model)
opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=16)
for epoch in range(2):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=6):
        loss = F.cross_entropy(model(x, y), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        update_ema(ema, model)
params = [*model.parameters(), *ema.parameters()]
print("weights finite:", all(p.isfinite().all().item() for p in params))
