"""CONTROL: batch size one with heavy-tailed data: gradient norm and loss jump by a factor of ten and more from step to step, around a healthy level."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="290_control_noisy_gradients_of_single_samples", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    return F.smooth_l1_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = B.mlp(8, 32, 1), torch.Generator().manual_seed(7)
    data = []
    for b in B.xy(40, bs=1):
        data.append(dict(x=b["x"], y=b["y"] + torch.tan(2.6 * (torch.rand(1, 1, generator=g) - 0.5))))
    return Case(m, loss_fn, data, B.adam(m, 1e-3), healthy=lambda log: max(r.grad_norm for r in log) > 10 * min(r.grad_norm for r in log))
