"""Signed square root sign(r) * sqrt(|r|) of a gated branch: a closed gate gives r = 0 exactly and 0 * inf in the gradient."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2322_signed_root_of_residual',
             source='own, from practice',
             symptom='nan_grad',
             phase='backward',
             cause='sqrt_grad_at_zero',
             op='sqrt',
             op_also=['mul', 'pow'],
             module='body.root',
             line_marker='# <-- origin',
             first_bad_step=7,
             bad_rows=[3],
             fixes_that_work=['eps', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip'])
FIXES = {'eps'}


class SignedRoot(nn.Module):
    fix = None

    def forward(s, x):
        a = x.abs() + (1e-6 if s.fix == "eps" else 0.0)
        r = torch.sqrt(a)  # <-- origin
        return torch.sign(x) * r


class Body(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc, s.root = nn.Linear(8, 12), SignedRoot()

    def forward(s, x, gate):
        return s.root(s.fc(x) * gate)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.head = Body(), nn.Linear(12, 1)

    def forward(s, x, gate):
        return s.head(s.body(x, gate))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"], b["gate"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(11)
    m.body.root.fix = fix
    for b in data:
        b["gate"] = torch.ones(6, 1)
    data[7]["gate"][3] = 0.0
    return Case(m, loss_fn, data, B.adam(m))
