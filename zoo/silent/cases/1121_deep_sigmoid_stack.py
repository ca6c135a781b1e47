"""Twelve sigmoid layers with the default initialisation: the gradient shrinks by more than four at every layer, the first ones receive nothing; the output stays at the
class frequencies."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1121_deep_sigmoid_stack", source="constructed (textbook)", symptom="silent", phase="backward",
             cause="vanishing_gradient", op="sigmoid", module="body.0", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             tensors=["body.0.weight", "body.2.weight"], static_visible=dict(source="yes: many sigmoid layers without norm or residual", objects="yes: gradient norms of the first batch"),
             quality_limit=0.8, margin=1.4, fixes_that_work=["relu", "residual"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"relu", "residual"}
DEPTH = 12


class Deep(nn.Module):
    def __init__(s, fix):
        super().__init__()
        act = nn.ReLU if fix == "relu" else nn.Sigmoid
        s.body = nn.Sequential(*[l for k in range(DEPTH) for l in (nn.Linear(12 if k == 0 else 24, 24), act())])  # <-- origin
        s.head, s.residual = nn.Linear(24, 4), fix == "residual"
        if fix == "relu":
            for l in s.body[::2]:
                nn.init.kaiming_normal_(l.weight, nonlinearity="relu")

    def forward(s, x):
        for k in range(0, 2 * DEPTH, 2):
            y = s.body[k + 1](s.body[k](x))
            x = x + y - 0.5 if s.residual and k else y
        return s.head(x)


def signal(case, i, r):
    """gradients of the first layer are a million times smaller than those of the last"""
    return bool(r) and r.stepped and r.grads["body.0.weight"] < 1e-6 * r.grads["head.weight"]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Deep(fix), S.cat(S.classes(16, seed=99))
    return SCase(m, S.ce, S.classes(80), torch.optim.Adam(m.parameters(), lr=3e-3), quality=lambda c: S.heldout_ce(m, test))
