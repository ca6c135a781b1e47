"""GeM pooling mean(x^p)^(1/p) of a feature map that is 0 everywhere: finite forward, infinite derivative of the outer power."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2301_gem_pooling_dead_map',
             source='own, from practice',
             symptom='nan_grad',
             phase='backward',
             cause='sqrt_grad_at_zero',
             op='pow',
             op_also=[],
             module='gem',
             line_marker='# <-- origin',
             first_bad_step=7,
             bad_rows=[4],
             fixes_that_work=['eps', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip'])
FIXES = {'eps'}


class GeM(nn.Module):
    fix = None

    def forward(s, x):
        m = x.pow(3).mean((2, 3))
        if s.fix == "eps":
            m = m + 1e-6
        return m.pow(1.0 / 3.0)  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv, s.gem, s.head = nn.Conv2d(1, 6, 3, bias=False), GeM(), nn.Linear(6, 2)

    def forward(s, x):
        return s.head(s.gem(s.conv(x).abs()))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(3)
    m.gem.fix = fix
    data = [dict(x=torch.rand(6, 1, 9, 9, generator=g) - 0.4, y=torch.randint(0, 2, (6,), generator=g)) for _ in range(11)]
    data[7]["x"][4] = 0.0
    return Case(m, loss_fn, data, B.adam(m))
