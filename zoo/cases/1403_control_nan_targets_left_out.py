"""CONTROL: missing targets are NaN by convention and are left out by index before the loss."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1403_control_nan_targets_left_out", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[],
             source="standard practice")


class MultiTask(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.tasks = B.mlp(10, 24, 16, nn.ReLU), nn.Linear(16, 5)

    def forward(s, x):
        return s.tasks(torch.relu(s.body(x)))


def loss_fn(m, b):
    known = ~torch.isnan(b["y"])
    return F.mse_loss(m(b["x"])[known], b["y"][known])


def make(seed=0, fix=None):
    m, g = MultiTask(), torch.Generator().manual_seed(3)
    data = []
    for _ in range(12):
        y = torch.randn(6, 5, generator=g)
        y[torch.rand(6, 5, generator=g) < 0.4] = float("nan")
        data.append(dict(x=torch.randn(6, 10, generator=g), y=y))
    return Case(m, loss_fn, data, B.adam(m))
