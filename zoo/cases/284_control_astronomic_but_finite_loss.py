"""CONTROL: summed squared error of raw prices: losses above 1e12, gradient norms above 1e11, everything finite and falling under Adam."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="284_control_astronomic_but_finite_loss", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]) * 1e4, b["y"] * 1e6, reduction="sum")


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.mlp(8, 32, 1)
    return Case(m, loss_fn, [B.xy(1, bs=16)[0]] * 14, B.adam(m, 0.05), healthy=lambda log: log[0].loss > 1e11 and log[-1].loss < log[0].loss)
