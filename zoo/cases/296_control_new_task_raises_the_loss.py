"""CONTROL: curriculum: at step 10 the data switch to a harder task, the loss more than doubles at once and falls again. The data and the optimizer are fine."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="296_control_new_task_raises_the_loss", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 32, 1), B.xy(24, bs=24)
    g = torch.Generator().manual_seed(6)
    for i, b in enumerate(data):                  # noisy labels keep the loss of the first task well above zero
        b["y"] = b["y"] + 0.4 * torch.randn(b["y"].shape, generator=g) + (1.0 if i >= 10 else 0.0)
    return Case(m, loss_fn, data, B.adam(m, 1e-2), healthy=lambda log: log[10].loss > 2 * log[9].loss and log[-1].loss < log[10].loss)
