"""Two experts are mixed with a learned weight, but the forward pass reads it with .item(): the mixing parameter is in the optimizer
and never in the graph."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="824_mixing_weight_read_with_item", source="written for this set after a common mistake; no single report",
             symptom="silent", phase="backward", cause="no_trainable_grad", op=None, module="mix", line_marker=None, tensor="mix.logit",
             first_bad_step=0, bad_rows=None, fixes_that_work=["keep_tensor"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"keep_tensor"}


class Mix(nn.Module):
    keep = False

    def __init__(s):
        super().__init__()
        s.logit = nn.Parameter(torch.zeros(()))

    def forward(s, a, b):
        w = torch.sigmoid(s.logit)
        w = w if s.keep else w.item()
        return w * a + (1 - w) * b


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.local, s.wide, s.mix, s.head = nn.Conv1d(4, 8, 3, padding=1), nn.Conv1d(4, 8, 9, padding=4), Mix(), nn.Linear(8, 2)

    def forward(s, x):
        return s.head(F.gelu(s.mix(s.local(x), s.wide(x))).mean(-1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(24)
    m.mix.keep = bool(fix)
    data = [dict(x=torch.randn(8, 4, 16, generator=g), y=torch.randint(0, 2, (8,), generator=g)) for _ in range(12)]
    return Case(m, loss_fn, data, B.adam(m, 3e-3), healthy=lambda log: all(r.grads["mix.logit"] for r in log))
