"""The loop replaces NaN gradients by zero and calls that skipping: SGD with momentum and weight decay goes on rolling, so a batch
that should not have counted still moves every weight."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="234_zeroed_gradients_keep_rolling", source="https://github.com/ray-project/ray/pull/47452",
             symptom="silent", phase="optimizer", cause="stale_momentum", op=None, module=None, line_marker=None, nonfinite_in_passing=True, first_bad_step=7, bad_rows=None,
             fixes_that_work=["true_skip", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"true_skip"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv, s.fc = nn.Conv1d(3, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(s, x):
        return s.fc(F.relu(s.conv(x)).amax(-1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def healthy(log):
    return all(r.update_norm == 0 for r in log if not r.loss_ok) and all(r.param_ok and r.state_ok for r in log)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(7)
    data = [dict(x=torch.randn(6, 3, 10, generator=g), y=torch.randint(0, 3, (6,), generator=g)) for _ in range(11)]
    data[7]["x"][2, 1, 4] = float("nan")
    opt = torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    return Case(m, loss_fn, data, opt, zero_nan_grads=fix != "true_skip", skip_nonfinite="grad" if fix == "true_skip" else None, healthy=healthy,
                extra=dict(first_bad=lambda log: next((r.step for r in log if not r.loss_ok and r.update_norm > 0), None)))
