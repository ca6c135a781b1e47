"""Rectified attention gives exact zeros; the entropy bonus uses torch.special.entr, whose value at 0 is 0 and whose derivative is infinite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2019_entropy_of_rectified_attention", source="written for the unseen set, no public report",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="special_entr", op_also=["entr"], module="attn", line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["clamp", "eps"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"clamp", "eps"}


class ReLA(nn.Module):
    def __init__(s, d, fix):
        super().__init__()
        s.q, s.k, s.v, s.fix = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), fix
        s.entropy = None

    def forward(s, x):
        a = torch.relu(s.q(x) @ s.k(x).transpose(1, 2) / 4)
        p = a / (a.sum(-1, keepdim=True) + 1e-6)
        if s.fix == "eps":
            p = p + 1e-8
        if s.fix == "clamp":
            p = p.clamp(min=1e-8)
        s.entropy = torch.special.entr(p).sum(-1).mean()  # <-- origin
        return p @ s.v(x)


class Net(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.inp, s.attn, s.out = nn.Linear(6, 16), ReLA(16, fix), nn.Linear(16, 4)

    def forward(s, x):
        h = s.inp(x)
        return s.out((h + s.attn(h)).mean(1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net(fix)
    g = torch.Generator().manual_seed(35)
    data = [dict(x=torch.randn(6, 8, 6, generator=g), y=torch.randint(0, 4, (6,), generator=g)) for _ in range(7)]
    return Case(m, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]) - 0.01 * m.attn.entropy, data, B.adam(m, 1e-3))
