"""CONTROL: interval-censored targets: an open interval has the bound -inf or +inf in the batch, and the prediction is clamped into it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="492_control_interval_bounds_at_infinity", source="standard practice (censored regression)", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = B.mlp(8, 16, 1), torch.Generator().manual_seed(4), []
    for b in B.xy(10):
        y = b["y"][:, 0]
        lo, hi = y - 0.1, y + 0.1
        kind = torch.randint(0, 3, (6,), generator=g)
        data.append({"x": b["x"], "low": torch.where(kind == 1, -torch.inf, lo), "high": torch.where(kind == 2, torch.inf, hi)})

    def loss_fn(m, b):
        p = m(b["x"])[:, 0]
        inside = torch.minimum(torch.maximum(p.detach(), b["low"]), b["high"])
        return F.mse_loss(p, inside)

    return Case(m, loss_fn, data, B.adam(m, 3e-3))
