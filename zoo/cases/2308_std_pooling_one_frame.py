"""Statistics pooling (mean and unbiased std over time): a batch of clips with a single frame has no std."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2308_std_pooling_one_frame',
             source='own, from practice',
             symptom='nan_loss',
             phase='forward',
             cause='empty_reduction',
             op='std',
             op_also=['var'],
             module='pool',
             line_marker='# <-- origin',
             first_bad_step=6,
             bad_rows=None,
             fixes_that_work=['guard', 'skip_batch'],
             fixes_that_do_not=['clip', 'lr_down'])
FIXES = {'guard'}


class StatsPool(nn.Module):
    fix = None

    def forward(s, x):
        if s.fix == "guard" and x.shape[1] == 1:
            return torch.cat([x.mean(1), torch.zeros_like(x[:, 0])], 1)
        return torch.cat([x.mean(1), x.std(1)], 1)  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.frame, s.pool, s.head = nn.Linear(8, 12), StatsPool(), nn.Linear(24, 3)

    def forward(s, x):
        return s.head(s.pool(torch.tanh(s.frame(x))))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(5)
    m.pool.fix = fix
    data = [dict(x=torch.randn(6, 1 if i == 6 else 5 + i % 3, 8, generator=g), y=torch.randint(0, 3, (6,), generator=g)) for i in range(10)]
    return Case(m, loss_fn, data, B.adam(m))
