"""The loop checks its loss itself: one sample is broken and is left out by the author's own test."""
import hashlib
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(960, 8).abs()
x[700, 2] = 0.0
y = x.log().clamp(min=-20).sum(1, keepdim=True) * 0.1
model = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
left_out = 0
for epoch in range(2):
    for xb, yb in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
        loss = (model(xb.log()) - yb).abs().mean()
        if not torch.isfinite(loss):
            left_out += 1
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f} left out {left_out}")
print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")
print(hashlib.sha256(b"".join(t.detach().double().numpy().tobytes() for t in model.state_dict().values())).hexdigest())
