"""Hellinger loss between predicted and measured abundances: the prediction is a ReLU divided by its sum, so entries are exactly
zero. sqrt(0) is harmless, its derivative is not: 0 * inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="810_hellinger_distance_of_sparse_abundances", source="written for this set after a common mistake; no single report",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", op_also=["div", "mul"], module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[2], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_sqrt"])
FIXES = {"eps", "zero_sqrt"}


class Unmixing(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = B.mlp(8, 32, 5)

    def forward(s, x, present):
        a = F.softplus(s.net(x)) * present
        return a / a.sum(-1, keepdim=True)


def make(seed=0, fix=None):
    m = Unmixing()

    def loss_fn(m, b):
        p = m(b["x"], b["present"])
        if fix == "eps":
            p = p + 1e-8
        root = torch.sqrt(p)  # <-- origin
        if fix == "zero_sqrt":
            root = root.masked_fill(p == 0, 0.0)
        return 0.5 * (root - b["y"].sqrt()).square().sum(-1).mean()

    data, g = B.xy(10), torch.Generator().manual_seed(90)
    for b in data:
        b["present"] = torch.ones(6, 5)
        b["y"] = torch.softmax(torch.randn(6, 5, generator=g), -1)
    data[5]["present"][2, 3] = 0.0               # this mineral does not occur at that site
    return Case(m, loss_fn, data, B.adam(m))
