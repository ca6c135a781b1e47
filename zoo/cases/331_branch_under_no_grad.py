"""Two branches; the one that should be fine-tuned still runs under no_grad from the days when it was frozen."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="331_branch_under_no_grad", source="common report: no_grad left in forward after unfreezing",
             symptom="silent", phase="backward", cause="no_trainable_grad", op=None, module="vision", module_also=["", "vision.fc1", "vision.fc2"], line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["no_detach"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"no_detach"}


class TwoBranches(nn.Module):
    fix = None

    def __init__(s):
        super().__init__()
        s.vision, s.text, s.head = B.mlp(8, 8, 4), B.mlp(8, 8, 4), nn.Linear(8, 1)

    def forward(s, x):
        with torch.set_grad_enabled(s.fix == "no_detach"):
            v = s.vision(x)
        return s.head(torch.cat([v, s.text(x.flip(-1))], -1))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = TwoBranches()
    m.fix = fix
    return Case(m, loss_fn, B.xy(8), B.adam(m), healthy=lambda log: all(v for n, v in log[-1].grads.items() if n.startswith("vision")))
