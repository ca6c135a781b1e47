"""torch.where(d2 > 0, sqrt(d2), 0): the distance of a point to itself is repaired going forward; the derivative of the branch
that was not taken is infinite times zero."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="332_distance_behind_where", source="common report: where() does not stop the gradient of the other branch",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="sqrt", op_also=["div", "mul"], module="distances", line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["double_where", "eps"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"double_where", "eps"}


class Distances(nn.Module):
    fix = None

    def forward(s, p):
        d2 = (p[:, :, None] - p[:, None]).pow(2).sum(-1)
        if s.fix == "double_where":
            return torch.where(d2 > 0, torch.sqrt(torch.where(d2 > 0, d2, 1.0)), 0.0)
        if s.fix == "eps":
            d2 = d2 + 1e-8
        return torch.where(d2 > 0, torch.sqrt(d2), 0.0)  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.move, s.distances = nn.Linear(3, 3), Distances()

    def forward(s, p):
        return s.distances(s.move(p))


def loss_fn(m, b):
    return (m(b["p"]) - b["d"]).pow(2).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(3)
    m.distances.fix = fix
    data = [dict(p=torch.randn(3, 4, 3, generator=g), d=torch.rand(3, 4, 4, generator=g)) for _ in range(7)]
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
