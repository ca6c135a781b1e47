"""Cluster assignment with an entropy bonus from torch.special.entr, which is 0 at 0; its slope there is infinite. The assignment is
multiplied by a mask of allowed clusters, so zeros are exact."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="913_entropy_of_a_masked_assignment", source="written for this set after a common mistake; no single report",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="special_entr", op_also=["entr", "mul", "log", "where"], module=None, line_marker="# <-- origin",
             first_bad_step=8, bad_rows=[3], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "clamp"}


class Assign(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc, s.centres = B.mlp(8, 24, 6), nn.Parameter(torch.randn(5, 6))

    def forward(s, x, allowed):
        z = s.enc(x)
        q = torch.softmax(-torch.cdist(z, s.centres), -1) * allowed
        return z, q / q.sum(-1, keepdim=True)


def make(seed=0, fix=None):
    m = Assign()

    def loss_fn(m, b):
        z, q = m(b["x"], b["allowed"])
        p = q + 1e-7 if fix == "eps" else q.clamp_min(1e-7) if fix == "clamp" else q
        bonus = torch.special.entr(p).sum(-1)  # <-- origin
        return (q * torch.cdist(z, m.centres).square()).sum(-1).mean() - 0.1 * bonus.mean()

    data = B.xy(12)
    for b in data:
        b["allowed"] = torch.ones(6, 5)
    data[8]["allowed"][3, 1:3] = 0.0
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
