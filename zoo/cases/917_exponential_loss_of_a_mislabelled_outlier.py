"""Boosting-style exponential loss exp(-y f(x)): one sample with an enormous feature sits far on the wrong side of the margin."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="917_exponential_loss_of_a_mislabelled_outlier", source="written for this set after a common mistake; no single report",
             symptom="inf_loss", phase="loss", cause="exp_overflow", op="exp", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[4], fixes_that_work=["clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp"}


class Stump(nn.Module):
    def __init__(s):
        super().__init__()
        s.lin, s.hidden, s.vote = nn.Linear(8, 1), nn.Linear(8, 12), nn.Linear(12, 1)

    def forward(s, x):
        return (s.lin(x) + s.vote(torch.tanh(s.hidden(x)))).squeeze(-1)


def make(seed=0, fix=None):
    m = Stump()

    def loss_fn(m, b):
        margin = b["s"] * m(b["x"])
        if fix:
            margin = margin.clamp_min(-15.0)
        return torch.exp(-margin).mean()  # <-- origin

    data = B.xy(11)
    for b in data:
        b["s"] = torch.where(b["y"].squeeze(-1) > 0, 1.0, -1.0)
    with torch.no_grad():
        data[6]["x"][4] = 500.0 * torch.sign(m.lin.weight[0])
    data[6]["s"][4] = -1.0
    return Case(m, loss_fn, data, B.adam(m))
