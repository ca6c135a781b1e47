"""fp16 autocast with the default loss scale of 65536: the first updates are dropped by the scaler, as they should be."""
import hashlib

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Config:
    steps, batch, lr = 40, 16, 2e-3


def data(cfg):
    g = torch.Generator().manual_seed(30)
    w = torch.randn(12, 3, generator=g) * 8
    for _ in range(cfg.steps):
        x = torch.randn(cfg.batch, 12, generator=g)
        yield x, x @ w


def main(cfg=Config):
    model = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    scaler = torch.amp.GradScaler("cpu")
    dropped = 0
    for x, y in data(cfg):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x).float(), y)
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        dropped += scaler.get_scale() < before
    print("dropped", dropped, "scale", scaler.get_scale(), "loss", loss.item())
    state = model.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
    print(hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in state.values())).hexdigest())


main()
