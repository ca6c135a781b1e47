"""The loop replaces NaN gradients by zeros and steps anyway. From step 6 on the sensor delivers nothing but NaN: AdamW's
momentum and weight decay go on moving the weights with no data behind them."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1350_nan_gradients_zeroed_weights_still_move", source="shared/seeds and mission.md: 98,000 steps of zeroed NaN gradients",
             symptom="silent", phase="optimizer", cause="stale_momentum", op=None, module=None, line_marker=None, nonfinite_in_passing=True,
             first_bad_step=6, bad_rows=None, fixes_that_work=["true_skip", "skip_batch"], fixes_that_do_not=["clip", "zero_nan_grads"])
FIXES = {"true_skip"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.c1, s.c2, s.fc = nn.Conv1d(2, 10, 3), nn.Conv1d(10, 10, 3), nn.Linear(10, 1)

    def forward(s, x):
        return s.fc(torch.tanh(s.c2(torch.tanh(s.c1(x)))).mean(-1))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(18)
    data = [dict(x=torch.randn(6, 2, 12, generator=g), y=torch.randn(6, 1, generator=g)) for _ in range(12)]
    for b in data[6:9]:
        b["x"][:] = float("nan")
    bad = lambda r: not r.grad_ok or not r.loss_ok

    def healthy(log):
        return all(r.update_norm == 0 for r in log if bad(r)) and all(r.param_ok and r.state_ok for r in log)

    return Case(m, loss_fn, data, torch.optim.AdamW(m.parameters(), lr=3e-3, weight_decay=0.1), zero_nan_grads=not fix,
                skip_nonfinite="grad" if fix else None, healthy=healthy,
                extra=dict(first_bad=lambda log: next((r.step for r in log if bad(r) and r.update_norm > 0), None)))
