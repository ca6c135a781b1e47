"""Poisson likelihood with a ReLU rate and accumulation over 3 micro-batches: rate exactly 0 and count 0 gives 0 * log 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2317_poisson_rate_zero_micro_batch',
             source='own, from practice',
             symptom='nan_loss',
             phase='loss',
             cause='log_zero',
             op='log',
             op_also=['mul', 'xlogy'],
             module=None,
             line_marker='# <-- origin',
             first_bad_step=7,
             bad_rows=[3],
             fixes_that_work=['eps', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip', 'lr_down'])
FIXES = {'eps'}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc = nn.Linear(8, 1, bias=False)

    def forward(s, x):
        return F.relu(s.fc(x.abs()) * 4)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = Net(), B.xy(12), torch.Generator().manual_seed(12)
    with torch.no_grad():
        m.fc.weight.abs_()
    for b in data:
        b["n"] = torch.poisson(torch.full((6, 1), 2.0), generator=g)
    data[7]["x"][3] = 0.0
    data[7]["n"][3] = 0.0

    def loss_fn(m, b):
        rate = m(b["x"]) + (1e-6 if fix == "eps" else 0.0)
        logr = torch.log(rate)  # <-- origin
        return (rate - b["n"] * logr).mean()

    return Case(m, loss_fn, data, B.adam(m), accumulation=3)
