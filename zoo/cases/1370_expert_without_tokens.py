"""Mixture of experts: a regulariser compares the mean of the tokens each expert received; in one batch an expert received
none and the mean of nothing is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1370_expert_without_tokens", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="forward", cause="empty_reduction", op="mean", module="moe", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=None, fixes_that_work=["guard", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"guard"}


class MoE(nn.Module):
    fix = None

    def __init__(s, d=12):
        super().__init__()
        s.experts = nn.ModuleList(nn.Linear(d, d) for _ in range(3))

    def forward(s, x, to):
        y, centre = torch.zeros_like(x), []
        for k, e in enumerate(s.experts):
            mine = to == k
            if s.fix and not bool(mine.any()):
                continue
            out = e(x[mine])
            y = y.index_put((mine,), out)
            centre.append(out.mean(0))  # <-- origin
        c = torch.stack(centre)
        return y, (c - c.mean(0)).pow(2).mean()


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.moe, s.out = nn.Linear(7, 12), MoE(), nn.Linear(12, 2)

    def forward(s, x, to):
        y, spread = s.moe(torch.relu(s.inp(x)), to)
        return s.out(y), spread


def loss_fn(m, b):
    y, spread = m(b["x"], b["to"])
    return F.cross_entropy(y, b["y"]) + 0.01 * torch.exp(-spread)


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(38)
    m.moe.fix = fix
    data = [dict(x=torch.randn(12, 7, generator=g), to=torch.arange(12) % 3, y=torch.randint(0, 2, (12,), generator=g)) for _ in range(10)]
    data[7]["to"] = torch.tensor([0, 2, 0, 2, 2, 0, 0, 2, 0, 0, 2, 2])
    return Case(m, loss_fn, data, B.adam(m))
