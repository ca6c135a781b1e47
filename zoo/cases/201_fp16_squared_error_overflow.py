"""Depth regression in pure half precision with targets in millimetres: an error of 300 squares to 90000 > 65504. The loss
is inf although every gradient (2 * err) is representable."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="201_fp16_squared_error_overflow", source="common report: hand-written squared error in model.half() training",
             symptom="inf_loss", phase="loss", cause="fp16_overflow", op="mul", op_also=["pow"], module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[3], fixes_that_work=["fp32", "bf16", "scale_down", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"fp32", "bf16", "scale_down"}


class DepthNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.down, s.up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1)

    def forward(s, x):
        return s.up(F.relu(s.down(x)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    dt = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    m = DepthNet().to(dt)

    def loss_fn(m, b):
        err = m(b["x"].to(dt)) - b["depth"].to(dt)
        if fix == "scale_down":
            err = err / 16
        sq = err * err  # <-- origin
        return sq.mean()

    g = torch.Generator().manual_seed(8)
    data = [dict(x=torch.rand(4, 3, 8, 8, generator=g), depth=torch.rand(4, 1, 8, 8, generator=g) * 40) for _ in range(10)]
    data[6]["depth"][3, 0, 2:4, 5] = 300.0        # a far wall
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-4))
