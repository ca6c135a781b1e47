"""Soft-label loss written with xlogy(target, p), which is 0 where target is 0 even at p = 0; its derivative target / p is 0/0 there.
The hierarchy head multiplies probabilities with a validity mask, so p is exactly zero for an impossible class."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="811_xlogy_of_an_impossible_class", source="written for this set after a common mistake; no single report",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="xlogy", op_also=["div", "mul"], module=None, line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[0, 3], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "clamp"}


class Hierarchy(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.mix, s.cls = nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 6)

    def forward(s, x, valid):
        p = torch.softmax(s.cls(F.elu(s.mix(F.elu(s.emb(x))))), -1)
        return p * valid


def make(seed=0, fix=None):
    m = Hierarchy()

    def loss_fn(m, b):
        p = m(b["x"], b["valid"])
        if fix == "eps":
            p = p + 1e-9
        if fix == "clamp":
            p = p.clamp_min(1e-9)
        return -torch.special.xlogy(b["soft"], p).sum(-1).mean()  # <-- origin

    data, g = B.xy(11), torch.Generator().manual_seed(91)
    for b in data:
        b["valid"] = torch.ones(6, 6)
        b["soft"] = torch.softmax(2 * torch.randn(6, 6, generator=g), -1)
    for r in (0, 3):
        data[7]["valid"][r, 4:] = 0.0
        data[7]["soft"][r] = torch.tensor([0.7, 0.2, 0.1, 0.0, 0.0, 0.0])
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
