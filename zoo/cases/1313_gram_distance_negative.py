"""Squared distances by |a|^2 + |b|^2 - 2ab: two identical views far from the origin leave a small negative residue and
sqrt makes it NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1313_gram_distance_negative", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="forward", cause="cancellation", op="sqrt", module="matcher", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1], fixes_that_work=["clamp", "two_pass", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp", "two_pass"}


class Matcher(nn.Module):
    fix = None

    def forward(s, a, b):
        if s.fix == "two_pass":
            return torch.linalg.vector_norm(a[:, :, None] - b[:, None], dim=-1)
        sq = a.pow(2).sum(-1)[:, :, None] + b.pow(2).sum(-1)[:, None] - 2 * torch.bmm(a, b.transpose(1, 2))
        if s.fix == "clamp":
            sq = sq.clamp_min(1e-6)
        return torch.sqrt(sq)  # <-- origin


class Points(nn.Module):
    def __init__(s):
        super().__init__()
        s.lift, s.matcher, s.temp = B.mlp(3, 24, 24), Matcher(), nn.Parameter(torch.tensor(0.5))

    def forward(s, a, b, shift):
        d = s.matcher(s.lift(a) + shift[:, None, None], s.lift(b) + shift[:, None, None])
        return F.log_softmax(-d * s.temp, -1)


def loss_fn(m, b):
    lp = m(b["a"], b["b"], b["shift"])
    return -lp.diagonal(dim1=1, dim2=2).mean()


def make(seed=0, fix=None):
    m, g = Points(), torch.Generator().manual_seed(6)
    m.matcher.fix = fix
    data = []
    for _ in range(10):
        a = torch.randn(4, 20, 3, generator=g)
        data.append(dict(a=a, b=a + 0.5 * torch.randn(4, 20, 3, generator=g), shift=torch.zeros(4)))
    data[6]["b"][1] = data[6]["a"][1]             # the augmentation was off for this one
    data[6]["shift"][1] = 40.0
    return Case(m, loss_fn, data, B.adam(m))
