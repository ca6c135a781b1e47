"""OneCycleLR with the peak of another recipe: while the rate climbs the network leaves its basin and the loss explodes."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="821_one_cycle_to_someone_elses_peak", source="written for this set after a common mistake; no single report",
             symptom="spike", phase="optimizer", cause="lr_divergence", op=None, module=None, line_marker=None,
             first_bad_step=4, bad_rows=None, fixes_that_work=["lr_down"], fixes_that_do_not=["skip_batch"])
FIXES = {"lr_down"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.fc2, s.fc3 = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(s, x):
        return s.fc3(F.relu(s.fc2(F.relu(s.fc1(x)))))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(16, bs=16)
    peak = 0.02 if fix == "lr_down" else 2.5
    opt = torch.optim.SGD(m.parameters(), lr=peak / 10, momentum=0.9)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=peak, total_steps=24, pct_start=0.5, div_factor=10, cycle_momentum=False)
    return Case(m, loss_fn, data, opt, scheduler=sched,
                healthy=lambda log: all(r.loss_ok for r in log) and max(r.loss for r in log) < 5 * max(r.loss for r in log[:3]))
