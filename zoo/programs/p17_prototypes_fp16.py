"""Prototype classifier under fp16 autocast with a GradScaler. The script refuses to go on with a NaN loss."""
import torch
import torch.nn as nn


class Prototypes(nn.Module):
    def __init__(self, d=24, classes=6):
        super().__init__()
        self.embed = nn.Linear(16, d)
        self.proto = nn.Linear(d, classes, bias=False)

    def forward(self, x):
        z = self.embed(x)
        gap = z[:, None] - self.proto.weight.to(z.dtype)
        return -(gap * gap).sum(-1)  # BUG


def stream(g, n):
    for k in range(n):
        y = torch.randint(0, 6, (12,), generator=g)
        x = torch.randn(12, 16, generator=g) + nn.functional.one_hot(y, 16) * 3
        if k == 27:
            x[7] = x[7] * 150  # read in millivolts
        yield x, y


def main():
    g = torch.Generator().manual_seed(90)
    torch.manual_seed(90)
    model = Prototypes()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step, (x, y) in enumerate(stream(g, 60)):
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x)
            loss = nn.functional.cross_entropy(logits.float(), y)
        if torch.isnan(loss):
            raise RuntimeError(f"loss is NaN at step {step}, stopping training")
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        if step % 10 == 0:
            print(step, loss.item(), scaler.get_scale())
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


main()
