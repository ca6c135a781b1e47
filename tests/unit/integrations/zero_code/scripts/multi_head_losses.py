"""Three heads, a loss for each over the labels that are present; a batch without labels for one."""
# ruff: noqa: B007, E741
# truth: op=div|mean cause=DX201|DX202 samples=any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MultiTask(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(7, 16), nn.ReLU())
        self.heads = nn.ModuleDict({t: nn.Linear(16, 1) for t in tasks})

    def forward(self, x):
        h = self.trunk(x)
        return {t: head(h).squeeze(-1) for t, head in self.heads.items()}


tasks = ["age", "height", "weight"]
loss_weights = {"age": 1.0, "height": 0.5, "weight": 0.25}
torch.manual_seed(0)
X, Y = torch.randn(72, 7), torch.randn(72, 3)
missing = torch.rand(72, 3) < 0.2
missing[48:56, 1] = True
Y[missing] = -999.0
loader = DataLoader(TensorDataset(X, Y), batch_size=8)
model = MultiTask(tasks)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
log = []
for epoch in range(2):
    for x, y in loader:
        out = model(x)
        losses = {}
        for k, task in enumerate(tasks):
            present = (y[:, k] != -999.0).float()
            squared = (out[task] - y[:, k]) ** 2 * present
            losses[task] = squared.sum() / present.sum()  # BUG
        loss = sum(loss_weights[t] * l for t, l in losses.items())
        log.append({t: l.item() for t, l in losses.items()})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(len(log), "batches")
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
