"""A hand-written autograd Function for unit-length features: forward guards the division with eps, backward forgets to and
divides by the stored length, which is 0 for an empty sample."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="243_custom_function_backward_divides", source="common report: eps in forward but not in a custom backward",
             symptom="nan_grad", phase="backward", cause="zero_division", op="div", op_also=["mul"], module="unit", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[3], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class UnitLength(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps_in_backward):
        n = x.norm(dim=-1, keepdim=True)
        y = x / (n + 1e-6)
        ctx.save_for_backward(y, n)
        ctx.guard = 1e-6 if eps_in_backward else 0.0
        return y

    @staticmethod
    def backward(ctx, g):
        y, n = ctx.saved_tensors
        radial = (g * y).sum(-1, keepdim=True)
        return (g - radial * y) / (n + ctx.guard), None  # <-- origin


class Unit(nn.Module):
    fix = None

    def forward(s, x):
        return UnitLength.apply(x, s.fix == "eps")


class Face(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.unit, s.centres = nn.Linear(8, 12, bias=False), Unit(), nn.Linear(12, 5, bias=False)

    def forward(s, x):
        return 8 * s.centres(s.unit(s.embed(x)))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["c"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = Face(), B.xy(9), torch.Generator().manual_seed(6)
    m.unit.fix = fix
    for b in data:
        b["c"] = torch.randint(0, 5, (6,), generator=g)
    data[5]["x"][3] = 0.0                         # a blank crop
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.05))
