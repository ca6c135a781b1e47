"""A healthy regression."""

import hashlib

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(40):
    x = torch.randn(16, 4)
    y = x.sum(1, keepdim=True)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print("sha256", hashlib.sha256(weights).hexdigest())
