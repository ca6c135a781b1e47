"""Gradient accumulation over 2: one micro-batch holds an image without any valid pixel, its masked mean is 0/0 and spoils the
window of the other one as well."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1376_accumulated_window_empty_crop", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class Depth(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)

    def forward(s, x):
        return s.b(F.elu(s.a(x))).squeeze(1)


def make(seed=0, fix=None):
    m, g = Depth(), torch.Generator().manual_seed(50)

    def loss_fn(m, b):
        gap = (m(b["img"]) - b["depth"]).abs() * b["valid"]
        area = b["valid"].sum([1, 2])
        if fix:
            area = area.clamp_min(1.0)
        return (gap.sum([1, 2]) / area).mean()  # <-- origin

    data = [dict(img=torch.randn(3, 3, 7, 7, generator=g), depth=torch.rand(3, 7, 7, generator=g), valid=(torch.rand(3, 7, 7, generator=g) > 0.3).float()) for _ in range(12)]
    data[6]["valid"][1] = 0
    return Case(m, loss_fn, data, B.adam(m), accumulation=2)
