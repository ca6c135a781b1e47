"""The depth map of one sample holds a NaN (sensor hole) which the second loss term reads."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2311_nan_in_auxiliary_target',
             source='own, from practice',
             symptom='nan_loss',
             phase='data',
             cause='bad_input',
             op=None,
             op_also=[],
             module=None,
             line_marker=None,
             first_bad_step=5,
             bad_rows=[2],
             fixes_that_work=['skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip', 'lr_down'],
             input_key='depth')
FIXES = set()


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.cls, s.depth = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 5)

    def forward(s, x):
        h = torch.relu(s.body(x))
        return s.cls(h), s.depth(h)


def loss_fn(m, b):
    c, d = m(b["x"])
    return F.cross_entropy(c, b["label"]) + 0.1 * F.l1_loss(d, b["depth"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = Net(), B.xy(10), torch.Generator().manual_seed(7)
    for b in data:
        b["label"], b["depth"] = torch.randint(0, 3, (6,), generator=g), torch.rand(6, 5, generator=g)
    data[5]["depth"][2, 3] = float("nan")
    return Case(m, loss_fn, data, B.adam(m))
