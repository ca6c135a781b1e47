"""Hyperbolic classifier on the hyperboloid: the exponential map uses cosh(r) and sinh(r)/r; a feature vector with norm in the
hundreds overflows both."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="827_exponential_map_of_a_far_tangent", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="forward", cause="exp_overflow", op="cosh", op_also=["sinh"], module="neck.expmap", line_marker="# <-- origin",
             first_bad_step=8, bad_rows=[2, 3], fixes_that_work=["clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp"}


class ExpMap(nn.Module):
    limit = None

    def forward(s, v):
        r = torch.sqrt(v.square().sum(-1, keepdim=True) + 1e-6)
        if s.limit:
            v = v * (s.limit / r).clamp(max=1.0)
            r = r.clamp(max=s.limit)
        return torch.cat([torch.cosh(r), torch.sinh(r) / r * v], -1)  # <-- origin


class Neck(nn.Module):
    def __init__(s):
        super().__init__()
        s.lin, s.expmap = nn.Linear(24, 6), ExpMap()

    def forward(s, h):
        return s.expmap(s.lin(h))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.neck, s.proto = nn.Linear(8, 24), Neck(), nn.Linear(7, 4)

    def forward(s, x):
        z = s.neck(F.relu(s.body(x)))
        return s.proto(z)


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["c"])


def make(seed=0, fix=None):
    m, data, g = Net(), B.xy(12), torch.Generator().manual_seed(27)
    m.neck.expmap.limit = 8.0 if fix else None
    for b in data:
        b["c"] = torch.randint(0, 4, (6,), generator=g)
    for r in (2, 3):
        data[8]["x"][r] *= 700.0
    return Case(m, loss_fn, data, B.adam(m))
