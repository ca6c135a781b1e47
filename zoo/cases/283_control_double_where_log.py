"""CONTROL: log of zero guarded the right way: the argument is replaced inside, the value is replaced outside."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="283_control_double_where_log", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class LogFeature(nn.Module):
    def forward(s, x):
        ok = x > 0
        return torch.where(ok, torch.log(torch.where(ok, x, torch.ones_like(x))), torch.full_like(x, -10.0))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc, s.log, s.head = nn.Linear(8, 16), LogFeature(), nn.Linear(16, 1)

    def forward(s, x):
        return s.head(s.log(F.relu(s.fc(x))))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net()
    return Case(m, loss_fn, B.xy(14), B.adam(m))
