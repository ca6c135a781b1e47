"""Plain SGD with a rate of 3 and no warm-up on a deep linear-ish net: every step overshoots further until the numbers overflow."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1380_no_warmup_rate_too_high", source="commonly reported; no link was looked up",
             symptom="spike", phase="optimizer", cause="lr_divergence", op=None, module=None, line_marker=None,
             first_bad_step=1, latent_from=0, bad_rows=None, fixes_that_work=["lr_down", "right_rate"], fixes_that_do_not=["skip_batch", "zero_nan_grads"])
FIXES = {"right_rate"}


class Deep(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1, s.l2, s.l3 = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(s, x):
        return s.l3(F.leaky_relu(s.l2(F.leaky_relu(s.l1(x), 0.3)), 0.3))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m = Deep()
    data = B.xy(10, bs=8)
    for b in data:
        b["y"] = b["y"] * 2 + 1
    return Case(m, loss_fn, data, B.sgd(m, 0.03 if fix else 3.0),
                healthy=lambda log: all(r.loss_ok and r.grad_ok for r in log) and max(r.loss for r in log[1:]) < 3 * log[0].loss + 3)
