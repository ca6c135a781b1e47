"""fp16 autocast with a GradScaler that starts at 2**24 and grows every five steps, so that it overflows now and then all along; accumulation over two."""
import hashlib

import torch
import torch.nn as nn

torch.set_num_threads(1)


def batch(g):
    x = torch.randn(16, 12, generator=g)
    return x, torch.sin(x[:, :1] * 2) + 0.5 * x[:, 1:2]


torch.manual_seed(13)
g = torch.Generator().manual_seed(13)
model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 1))
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=5)
left_out = 0
for step in range(120):
    for _ in range(2):
        x, y = batch(g)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x).float(), y) / 2
        scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    left_out += scaler.get_scale() < before
    if step % 30 == 29:
        print(step + 1, "loss", round(2 * loss.item(), 4), "scale", scaler.get_scale(), "left out", left_out)
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
