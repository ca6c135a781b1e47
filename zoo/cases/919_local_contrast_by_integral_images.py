"""Local contrast normalisation with integral images: window variance as E[x^2] - E[x]^2 from differences of cumulative sums. In a bright
picture of a smooth wall the difference is pure rounding and comes out negative."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="919_local_contrast_by_integral_images", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="forward", cause="cancellation", op="sqrt", module="contrast", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[3], fixes_that_work=["two_pass", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"two_pass", "clamp"}


def box(x, k=3):
    c = F.pad(x.cumsum(-1).cumsum(-2), (1, 0, 1, 0))
    return (c[..., k:, k:] - c[..., :-k, k:] - c[..., k:, :-k] + c[..., :-k, :-k]) / k ** 2


class Contrast(nn.Module):
    fix = None

    def forward(s, x):
        if s.fix == "two_pass":
            w = x.unfold(2, 3, 1).unfold(3, 3, 1).flatten(-2)
            mu, var = w.mean(-1), w.var(-1, unbiased=False)
        else:
            mu = box(x)
            var = box(x * x) - mu * mu
        if s.fix == "clamp":
            var = var.clamp_min(0.0)
        return (x[..., 1:-1, 1:-1] - mu) / torch.sqrt(var + 1e-3)  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.contrast, s.conv, s.head = Contrast(), nn.Conv2d(1, 8, 3), nn.Linear(8, 3)

    def forward(s, x):
        return s.head(F.relu(s.conv(s.contrast(x))).mean([2, 3]))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(19)
    m.contrast.fix = fix
    data = [dict(x=torch.randn(5, 1, 12, 12, generator=g), y=torch.randint(0, 3, (5,), generator=g)) for _ in range(10)]
    data[6]["x"][3] = 200.0 + 0.01 * data[6]["x"][3]
    return Case(m, loss_fn, data, B.adam(m))
