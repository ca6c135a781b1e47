"""CONTROL: NaN marks a target nobody measured; the loss selects the measured ones first."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2391_control_nan_marks_missing_target',
             source='own, from practice',
             symptom='none',
             phase='none',
             cause='none',
             op=None,
             op_also=[],
             module=None,
             line_marker=None,
             first_bad_step=None,
             bad_rows=None,
             fixes_that_work=[],
             fixes_that_do_not=[],
             nonfinite_in_passing=True)
FIXES = set()


def loss_fn(m, b):
    known = ~torch.isnan(b["y3"])
    return F.mse_loss(m(b["x"])[known], b["y3"][known])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = B.mlp(8, 16, 3), B.xy(10), torch.Generator().manual_seed(21)
    for b in data:
        b["y3"] = torch.randn(6, 3, generator=g)
        b["y3"][torch.rand(6, 3, generator=g) < 0.4] = float("nan")
        b["y3"][0, 0] = 0.5
    return Case(m, loss_fn, data, B.adam(m))
