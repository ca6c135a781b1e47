"""fp16 autocast on CPU with a GradScaler that starts far too high and backs off."""
import hashlib
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 4))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=25)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100)
w = torch.randn(20, 4)
for step in range(100):
    x = torch.randn(32, 20)
    y = (x @ w).argmax(-1)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    if scaler.get_scale() >= before:
        sched.step()
    if step % 20 == 0:
        print(step, f"loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")
print(hashlib.sha256(b"".join(t.detach().double().numpy().tobytes() for t in model.state_dict().values())).hexdigest())
