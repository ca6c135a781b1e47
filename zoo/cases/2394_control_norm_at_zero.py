"""CONTROL: torch.linalg.vector_norm and F.normalize of a zero vector have finite gradients."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2394_control_norm_at_zero',
             source='own, from practice',
             symptom='none',
             phase='none',
             cause='none',
             op=None,
             op_also=[],
             module=None,
             line_marker=None,
             first_bad_step=None,
             bad_rows=None,
             fixes_that_work=[],
             fixes_that_do_not=[])
FIXES = set()


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc = nn.Linear(8, 5, bias=False)

    def forward(s, x):
        z = s.fc(x)
        return F.normalize(z, dim=1), torch.linalg.vector_norm(z, dim=1)


def loss_fn(m, b):
    unit, size = m(b["x"])
    return (unit[:, :1] - b["y"]).pow(2).mean() + 0.1 * size.mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(10)
    data[4]["x"][2] = 0.0
    return Case(m, loss_fn, data, B.adam(m))
