"""Unscaled targets: squared errors of 1e11 and a slow start, then gradients that spike."""
import hashlib

import torch
import torch.nn as nn

torch.manual_seed(9)
g = torch.Generator().manual_seed(2)
rooms = torch.randint(1, 9, (300, 1), generator=g).float()
area = rooms * 25 + 30 * torch.rand(300, 1, generator=g)
price = 4000 * area + 20000 * rooms + 30000 * torch.randn(300, 1, generator=g)
price[120:125] *= 30  # five castles
x = torch.cat([rooms, area], 1)
model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
for epoch in range(4):
    for i in range(0, 300, 20):
        loss = (model(x[i : i + 20]) - price[i : i + 20]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        optimizer.step()
    print(epoch, f"{loss.item():.3e} {norm.item():.3e}")
state = model.state_dict()
print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
print(hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in state.values())).hexdigest())
