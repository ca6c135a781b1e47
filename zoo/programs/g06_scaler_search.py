"""fp16 autocast on the CPU: GradScaler starts at 2**24, overflows some steps long, and later grows again until it must back off."""
import hashlib

import torch
import torch.nn as nn

torch.manual_seed(2)
net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=15)
X = torch.randn(1024, 16)
Y = torch.sin(X[:, :1]) + X[:, 1:2] * X[:, 2:3]
scales, skipped = [], 0
for epoch in range(5):
    perm = torch.randperm(1024)
    for idx in perm.split(32):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(X[idx]).float(), Y[idx])
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        skipped += scaler.get_scale() < before
        scales.append(scaler.get_scale())
    print(f"epoch {epoch} loss {loss.item():.4f} scale {scales[-1]:.0f} backed off {skipped} times")
print("first scales", scales[:12])
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
