"""Inverse-distance interpolation of features: a query lies exactly on a reference point, 1/0 is inf and inf/inf NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1344_inverse_distance_coincident", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="forward", cause="zero_division", op="reciprocal", op_also=["div", "pow"], module="up.interp", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[3], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class Interp(nn.Module):
    eps = 0.0

    def forward(s, q, ref, feat):
        d2 = (q[:, :, None] - ref[:, None]).pow(2).sum(-1)
        w = 1.0 / (d2 + s.eps)  # <-- origin
        return (w / w.sum(-1, keepdim=True)) @ feat


class Up(nn.Module):
    def __init__(s):
        super().__init__()
        s.lin, s.interp = nn.Linear(4, 16), Interp()

    def forward(s, q, ref, f):
        return s.interp(q, ref, torch.relu(s.lin(f)))


class PointNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.up, s.cls = Up(), nn.Linear(16, 3)

    def forward(s, q, ref, f):
        return s.cls(s.up(q, ref, f))


def loss_fn(m, b):
    return F.cross_entropy(m(b["q"], b["ref"], b["f"]).transpose(1, 2), b["y"])


def make(seed=0, fix=None):
    m, g = PointNet(), torch.Generator().manual_seed(16)
    m.up.interp.eps = 1e-6 if fix else 0.0
    data = [dict(q=torch.randn(4, 9, 3, generator=g), ref=torch.randn(4, 5, 3, generator=g), f=torch.randn(4, 5, 4, generator=g), y=torch.randint(0, 3, (4, 9), generator=g)) for _ in range(11)]
    data[7]["q"][3, 2] = data[7]["ref"][3, 1]
    return Case(m, loss_fn, data, B.adam(m))
