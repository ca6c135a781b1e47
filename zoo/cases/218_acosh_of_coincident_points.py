"""Hyperbolic embedding: acosh(1 + 2|u-v|^2 / ...) of two points that coincide is acosh(1) = 0 with an infinite derivative."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="218_acosh_of_coincident_points", source="https://github.com/geoopt/geoopt/pull/121",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="acosh", op_also=["mul", "rsqrt", "div", "arccosh"], module="poincare", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[4], fixes_that_work=["clamp_inside", "skip_batch", "drop_rows"], fixes_that_do_not=["clamp_to_domain", "clip", "zero_nan_grads", "lr_down"])
FIXES = {"clamp_inside", "clamp_to_domain"}


class Poincare(nn.Module):
    fix = None

    def forward(s, u, v):
        gap = (u - v).pow(2).sum(-1)
        arg = 1 + 2 * gap / ((1 - u.pow(2).sum(-1)) * (1 - v.pow(2).sum(-1)))
        if s.fix:
            arg = arg.clamp_min(1.0 + 1e-5 if s.fix == "clamp_inside" else 1.0)
        return torch.acosh(arg)  # <-- origin


class Taxonomy(nn.Module):
    def __init__(s):
        super().__init__()
        s.points, s.poincare = nn.Embedding(30, 4), Poincare()
        nn.init.uniform_(s.points.weight, -0.2, 0.2)

    def forward(s, child, parent):
        return s.poincare(s.points(child), s.points(parent))


def loss_fn(m, b):
    return F.softplus(m(b["child"], b["parent"]) - m(b["child"], b["other"])).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Taxonomy(), torch.Generator().manual_seed(3)
    m.poincare.fix = fix
    data = []
    for _ in range(9):
        ids = torch.stack([torch.randperm(30, generator=g)[:3] for _ in range(6)])
        data.append(dict(child=ids[:, 0], parent=ids[:, 1], other=ids[:, 2]))
    data[5]["parent"][4] = data[5]["child"][4]    # a self-loop in the edge list
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.1))
