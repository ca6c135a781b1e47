"""CONTROL: Huber and asinh-like losses by where: both branches are finite with finite derivatives everywhere, the unselected one is merely large."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="291_control_where_with_safe_branches", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def robust(err):
    a = err.abs()
    return torch.where(a < 1.0, 0.5 * err.pow(2), a - 0.5) + torch.where(a > 50.0, 50.0 + torch.log(a.clamp_min(50.0) / 50.0), a)


def loss_fn(m, b):
    return robust(m(b["x"]) - b["y"]).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 32, 1), B.xy(12)
    data[6]["y"][2] = 3e4                         # an outlier that the loss is made for
    return Case(m, loss_fn, data, B.adam(m))
