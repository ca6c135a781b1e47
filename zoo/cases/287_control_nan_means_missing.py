"""CONTROL: a table whose missing cells are NaN; the model replaces them before any arithmetic and adds an indicator. The batch is full of NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="287_control_nan_means_missing", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Tabular(nn.Module):
    def __init__(s):
        super().__init__()
        s.default, s.net = nn.Parameter(torch.zeros(8)), B.mlp(16, 24, 1)

    def forward(s, x):
        gone = torch.isnan(x)
        filled = torch.where(gone, s.default.expand_as(x), x)
        return s.net(torch.cat([filled, gone.float()], -1))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = Tabular(), B.xy(12), torch.Generator().manual_seed(5)
    for b in data:
        b["x"][torch.rand(b["x"].shape, generator=g) < 0.15] = float("nan")
    return Case(m, loss_fn, data, B.adam(m))
