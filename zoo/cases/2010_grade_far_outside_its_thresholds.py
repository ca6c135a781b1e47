"""Ordinal probit: P(grade) = Phi(upper) - Phi(lower). Far in the tail both are the same float and the log meets an exact zero."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2010_grade_far_outside_its_thresholds", source="written for the unseen set, no public report",
             symptom="inf_loss", phase="loss", cause="log_zero", op="log", module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[6], fixes_that_work=["clamp", "eps", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp", "eps"}


class Ordinal(nn.Module):
    def __init__(s):
        super().__init__()
        s.score = nn.Linear(5, 1)
        s.cuts = nn.Parameter(torch.tensor([-1.0, 0.0, 1.0]))
        with torch.no_grad():
            s.score.weight.copy_(torch.tensor([[2.0, -1.0, 0.5, 1.0, -0.5]]))

    def forward(s, x):
        return s.score(x).squeeze(-1), s.cuts


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Ordinal()

    def loss_fn(m, b):
        z, cuts = m(b["x"])
        edges = torch.cat([torch.tensor([-50.0]), cuts, torch.tensor([50.0])])
        phi = lambda t: 0.5 * (1 + torch.erf(t / 2**0.5))
        p = phi(edges[b["y"] + 1] - z) - phi(edges[b["y"]] - z)
        if fix == "clamp":
            p = p.clamp(min=1e-7)
        if fix == "eps":
            p = p + 1e-7
        return -torch.log(p).mean()  # <-- origin

    g = torch.Generator().manual_seed(6)
    data = []
    for _ in range(9):
        x = torch.randn(8, 5, generator=g) * 0.4
        data.append(dict(x=x, y=((2 * x[:, 0] - x[:, 1]).clamp(-1.9, 1.9) + 2).long()))
    data[5]["x"][6] = torch.tensor([4.0, -3.0, 2.0, 3.0, -2.0])
    data[5]["y"][6] = 0
    return Case(m, loss_fn, data, B.sgd(m, 0.02))
