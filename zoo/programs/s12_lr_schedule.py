"""One-cycle by hand with the peak in the wrong unit; raises when the loss explodes."""
import math
import sys

import torch
import torch.nn as nn

CONFIG = dict(peak=300.0, warmup=25, steps=120, batch=32)  # BUG


def lr_at(step):
    if step < CONFIG["warmup"]:
        return CONFIG["peak"] * (step + 1) / CONFIG["warmup"]
    t = (step - CONFIG["warmup"]) / (CONFIG["steps"] - CONFIG["warmup"])
    return CONFIG["peak"] * 0.5 * (1 + math.cos(math.pi * t))


def sample(g):
    x = torch.randn(CONFIG["batch"], 6, generator=g)
    return x, (x ** 2).sum(1, keepdim=True)


def main():
    torch.manual_seed(4)
    g = torch.Generator().manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    for step in range(CONFIG["steps"]):
        for group in opt.param_groups:
            group["lr"] = lr_at(step) * 0.01
        x, y = sample(g)
        loss = nn.functional.mse_loss(model(x), y)
        if not math.isfinite(loss.item()):
            print(f"step {step}: loss {loss.item()}, giving up")
            print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
            sys.exit(3)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(step, f"{loss.item():.3g}")
    print("FINITE")


main()
