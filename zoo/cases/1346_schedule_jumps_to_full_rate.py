"""A scheduler that was configured in epochs but stepped per batch: at step 6 the rate jumps from 0.02 to 20; the loss
blows up while everything is still finite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1346_schedule_jumps_to_full_rate", source="commonly reported; no link was looked up",
             symptom="spike", phase="optimizer", cause="lr_divergence", op=None, module=None, line_marker=None,
             first_bad_step=6, bad_rows=None, fixes_that_work=["lr_down", "right_rate"], fixes_that_do_not=["skip_batch", "zero_nan_grads"])
FIXES = {"right_rate"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv, s.mid, s.out = nn.Conv1d(3, 12, 5), nn.Linear(12, 24), nn.Linear(24, 2)

    def forward(s, x):
        return s.out(torch.relu(s.mid(torch.relu(s.conv(x)).mean(-1))))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(40)
    data = []
    for _ in range(12):
        x = torch.randn(8, 3, 16, generator=g)
        data.append(dict(x=x, y=x.mean(-1)[:, :2] * 2 + 0.3))
    opt = torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: 1000.0 if k >= 6 and not fix else 1.0)

    def healthy(log):
        return all(r.loss_ok and r.grad_ok for r in log) and max(r.loss for r in log[6:]) < 3 * max(r.loss for r in log[:6])

    return Case(m, loss_fn, data, opt, scheduler=sched, healthy=healthy)
