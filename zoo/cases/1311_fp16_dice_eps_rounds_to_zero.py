"""Dice loss in half precision with the usual 1e-8: it rounds to 0 in fp16, and for an empty mask whose prediction has
underflowed too the ratio is 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1311_fp16_dice_eps_rounds_to_zero", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="loss", cause="fp16_underflow", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0], fixes_that_work=["eps", "fp32", "bf16", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "fp32", "bf16"}


class Seg(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc, s.dec = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(10, 1, 1)

    def forward(s, x):
        return s.dec(torch.cat([F.relu(s.enc(x)), x], 1)).squeeze(1)


def make(seed=0, fix=None):
    dt = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    m = Seg()
    with torch.no_grad():
        m.dec.weight[0, 9] = -9.0                 # channel 1 is the air mask: surely background
    m, g = m.to(dt), torch.Generator().manual_seed(2)
    eps = 1e-2 if fix == "eps" else 1e-8

    def loss_fn(m, b):
        p = torch.sigmoid(m(b["x"].to(dt))).flatten(1)
        t = b["mask"].to(dt).flatten(1)
        overlap, total = (p * t).sum(1), p.sum(1) + t.sum(1)
        dice = (2 * overlap + eps) / (total + eps)  # <-- origin
        return 1 - dice.float().mean()

    data = []
    for _ in range(10):
        x = torch.randn(4, 2, 8, 8, generator=g)
        x[:, 1] = (torch.rand(4, 8, 8, generator=g) < 0.2).float()
        data.append(dict(x=x, mask=(torch.rand(4, 8, 8, generator=g) > 0.6).float()))
    data[6]["x"][0, 1] = 3.0                      # nothing but air
    data[6]["mask"][0] = 0.0
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-2))
