"""Top-1 routing with a balance term that takes the mean of each expert's tokens: in one batch no token chose the third expert and
the mean is over nothing."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="307_expert_without_tokens", source="common report: per-expert statistics of an expert that received no token",
             symptom="nan_loss", phase="forward", cause="empty_reduction", op="mean", op_also=["div"], module="moe", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=None, fixes_that_work=["guard", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"guard"}


class MoE(nn.Module):
    fix = None

    def __init__(s):
        super().__init__()
        s.experts = nn.ModuleList(B.mlp(8, 8, 4) for _ in range(3))

    def forward(s, x, route):
        y, balance = x.new_zeros(len(x), 4), 0.0
        for e, expert in enumerate(s.experts):
            mine = route == e
            out = expert(x[mine])
            y = y.index_put((mine.nonzero()[:, 0],), out)
            if s.fix == "guard" and not mine.any():
                continue
            balance = balance + out.pow(2).mean()  # <-- origin
        return y, balance


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.moe, s.head = MoE(), nn.Linear(4, 1)

    def forward(s, x, route):
        y, balance = s.moe(x, route)
        return s.head(y), balance


def loss_fn(m, b):
    y, balance = m(b["x"], b["route"])
    return F.mse_loss(y, b["y"]) + 1e-2 * balance


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = Net(), B.xy(9, bs=8), torch.Generator().manual_seed(3)
    m.moe.fix = fix
    for b in data:
        b["route"] = torch.randperm(8, generator=g) % 3
    data[5]["route"] %= 2
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
