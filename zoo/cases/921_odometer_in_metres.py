"""Used-car prices: two rows of one batch came from a dealer who gives the odometer in metres and the price in cents. Everything stays
finite, but loss and gradient jump by orders of magnitude."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="921_odometer_in_metres", source="written for this set after a common mistake; no single report",
             symptom="spike", phase="data", cause="bad_input", op=None, module=None, line_marker=None, input_key="x",
             first_bad_step=8, bad_rows=[2, 4], fixes_that_work=["drop_rows", "right_units"], fixes_that_do_not=["skip_batch", "lr_down"])
FIXES = {"right_units"}


class Price(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.hidden, s.out = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(s, x):
        return s.out(F.relu(s.hidden(F.relu(s.inp(x)))))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, data = Price(), B.xy(14, bs=8)
    if not fix:
        for r in (2, 4):
            data[8]["x"][r, 3] = 1000.0 * (1.0 + data[8]["x"][r, 3].abs())
            data[8]["y"][r] *= 100.0
    return Case(m, loss_fn, data, B.adam(m, 3e-3), healthy=lambda log: all(r.loss_ok for r in log) and max(r.loss for r in log) < 5 * max(r.loss for r in log[:3]))
