"""CONTROL: a buffer that holds the best loss so far starts at +inf, and a running minimum per class stays inf until the class is seen."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1406_control_inf_best_so_far", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[],
             source="standard practice", nonfinite_in_passing=True)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = B.mlp(8, 20, 3)
        s.register_buffer("best", torch.tensor(float("inf")))
        s.register_buffer("class_min", torch.full((3,), float("inf")))

    def forward(s, x):
        return s.net(x)


def loss_fn(m, b):
    each = F.cross_entropy(m(b["x"]), b["c"], reduction="none")
    with torch.no_grad():
        m.best.copy_(torch.minimum(m.best, each.mean()))
        m.class_min.scatter_reduce_(0, b["c"], each, "amin")
    return each.mean()


def make(seed=0, fix=None):
    m, data, g = Net(), B.xy(12), torch.Generator().manual_seed(4)
    for i, b in enumerate(data):
        b["c"] = torch.randint(0, 3 if i > 5 else 2, (6,), generator=g)
    return Case(m, loss_fn, data, B.adam(m))
