"""A clinical table with a third of the entries missing: NaN in the features is replaced by a learned value, NaN in the labels is selected away."""
import hashlib

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Impute(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fill = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        gone = torch.isnan(x)
        return torch.cat([torch.where(gone, self.fill, torch.nan_to_num(x)), gone.float()], 1)


def table(n=500):
    g = torch.Generator().manual_seed(16)
    x = torch.randn(n, 7, generator=g)
    y = torch.stack([x[:, 0] + x[:, 1], x[:, 2] * 2], 1)
    x[torch.rand(n, 7, generator=g) < 0.3] = float("nan")
    y[torch.rand(n, 2, generator=g) < 0.4] = float("nan")
    y[40:60] = float("nan")  # a ward that sent no results: one batch without any label
    return TensorDataset(x, y)


torch.manual_seed(16)
model = nn.Sequential(Impute(7), nn.Linear(14, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(4):
    total, used = 0.0, 0
    for x, y in DataLoader(table(), batch_size=20):
        known = ~torch.isnan(y)
        if not known.any():
            continue
        out = model(x)
        loss = nn.functional.mse_loss(out[known], y[known])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total, used = total + loss.item(), used + 1
    print("epoch", epoch, "loss", round(total / used, 4), "batches with labels", used)
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
