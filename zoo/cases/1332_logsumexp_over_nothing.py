"""Multiple-instance bag score logsumexp over the instances present: for an empty bag it is -inf, exp turns that into a
correct 0, but the derivative of logsumexp there is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1332_logsumexp_over_nothing", source="commonly reported; no link was looked up",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="logsumexp", op_also=["sub", "exp", "mul"], module="bag", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[4], fixes_that_work=["finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"finfo_min"}


class Bag(nn.Module):
    neg = float("-inf")

    def forward(s, score, present):
        bias = torch.where(present, 0.0, s.neg)
        return torch.logsumexp(score + bias, -1)  # <-- origin


class MIL(nn.Module):
    def __init__(s):
        super().__init__()
        s.inst, s.bag = B.mlp(6, 20, 1, nn.SiLU), Bag()

    def forward(s, x, present):
        return torch.exp(s.bag(s.inst(x).squeeze(-1), present))     # expected count in the bag


def loss_fn(m, b):
    return F.mse_loss(m(b["x"], b["present"]), b["count"])


def make(seed=0, fix=None):
    m, g = MIL(), torch.Generator().manual_seed(19)
    m.bag.neg = -1e4 if fix else float("-inf")
    data = []
    for _ in range(10):
        keep = torch.rand(5, 7, generator=g) > 0.4
        keep[:, 0] = True
        data.append(dict(x=torch.randn(5, 7, 6, generator=g), present=keep, count=keep.sum(1).float()))
    data[6]["present"][4] = False
    data[6]["count"][4] = 0.0
    return Case(m, loss_fn, data, B.adam(m))
