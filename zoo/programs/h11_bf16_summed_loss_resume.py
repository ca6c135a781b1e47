"""bfloat16 autocast, loss summed over the batch, a checkpoint in the middle and a fresh process-like resume with a new schedule."""
import hashlib

import torch
import torch.nn as nn


def build():
    model = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, opt


def batches(epoch):
    g = torch.Generator().manual_seed(200 + epoch)
    for k in range(15):
        n = 96 if k % 5 else 7
        x = torch.randn(n, 12, generator=g)
        yield x, 300 * x[:, :1] + 20 * torch.randn(n, 1, generator=g)


def run(model, opt, epochs, warmup):
    step = 0
    for e in epochs:
        for x, y in batches(e):
            for group in opt.param_groups:
                group["lr"] = 1e-2 * min(1.0, (step + 1) / warmup)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
            loss = (out.float() - y).pow(2).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
        print(e, f"{loss.item():.4g}")


torch.manual_seed(6)
model, opt = build()
run(model, opt, range(2), warmup=10)
torch.save([model.state_dict(), opt.state_dict()], "half.pt")
model, opt = build()
saved = torch.load("half.pt")
model.load_state_dict(saved[0])
opt.load_state_dict(saved[1])
run(model, opt, range(2, 4), warmup=3)
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
