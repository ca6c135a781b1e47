"""Median regression with a pinball loss written by hand: predictions (B, 1), targets (B,). The difference is (B, B), no warning is given, and the best answer is the median of everything for every input."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="922_pinball_against_a_column", source="constructed", symptom="silent", phase="loss", cause="broadcasting_loss_shape", op="sub", module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, static_visible=dict(source="no: shapes are not in the source", objects="no: with the first batch yes (16,1) against (16,)"),
             quality_limit=0.6, margin=1.8, fixes_that_work=["squeeze"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"squeeze"}


class Gated(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.g, s.out = nn.Linear(8, 32), nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(s, x):
        return s.out(torch.tanh(s.a(x)) * torch.sigmoid(s.g(x)))


def pinball(e, q=0.5):
    return torch.maximum(q * e, (q - 1) * e)


def signal(case, i, r):
    return case.extra.get("shape") is not None and len(case.extra["shape"]) == 2


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test, extra = Gated(), S.cat(S.regression(16, seed=9)), {}

    def loss_fn(m, b):
        p = m(b["x"])
        e = b["y"] - (p[:, 0] if fix else p)  # <-- origin
        extra["shape"] = tuple(e.shape)
        return pinball(e).mean()

    def quality(c):                                # in units of the best constant
        return S.in_eval(m, lambda: pinball(test["y"] - m(test["x"])[:, 0]).mean()) / float(pinball(test["y"] - test["y"].median()).mean())

    return SCase(m, loss_fn, S.regression(150), torch.optim.Adamax(m.parameters(), lr=2e-2), extra=extra, quality=quality)
