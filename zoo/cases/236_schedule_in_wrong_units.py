"""The schedule raises the learning rate per epoch but is stepped per batch: at step 6 the rate is 300 times what it was, and the
regression blows up, finite at first."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="236_schedule_in_wrong_units", source="https://github.com/crowsonkb/k-diffusion/issues/50",
             symptom="spike", phase="optimizer", cause="lr_divergence", op=None, module=None, line_marker=None, first_bad_step=6, bad_rows=None,
             fixes_that_work=["lr_down", "schedule_per_epoch"], fixes_that_do_not=["skip_batch", "zero_nan_grads", "clip"])
FIXES = {"schedule_per_epoch"}


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    data = B.xy(16, bs=16)
    opt = torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.5)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda e: 300.0 if e >= 6 and fix is None else 1.0)

    def healthy(log):
        return all(r.loss_ok and r.param_ok for r in log) and max(r.loss for r in log) < 3 * max(r.loss for r in log[:6])

    return Case(m, loss_fn, data, opt, scheduler=sched, healthy=healthy)
