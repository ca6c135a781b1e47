"""Haversine distance 2 asin(sqrt(h)): a prediction that is exactly on the target gives h = 0; the loss is finite, the derivative of the root is not."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2303_haversine_same_place',
             source='own, from practice',
             symptom='nan_grad',
             phase='backward',
             cause='sqrt_grad_at_zero',
             op='sqrt',
             op_also=['pow', 'mul'],
             module=None,
             line_marker='# <-- origin',
             first_bad_step=6,
             bad_rows=[3],
             fixes_that_work=['eps', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip', 'lr_down'])
FIXES = {'eps'}


class Geo(nn.Module):
    def __init__(s):
        super().__init__()
        s.body = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 2, bias=False))

    def forward(s, x, start):
        return start + 0.1 * s.body(x)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Geo(), B.xy(10)
    g = torch.Generator().manual_seed(9)
    for b in data:
        b["start"] = torch.rand(6, 2, generator=g)
        b["goal"] = b["start"] + 0.2 * torch.randn(6, 2, generator=g)
    data[6]["x"][3] = 0.0                       # the ship stays in port
    data[6]["goal"][3] = data[6]["start"][3]

    def loss_fn(m, b):
        p, q = m(b["x"], b["start"]), b["goal"]
        dlat, dlon = p[:, 0] - q[:, 0], p[:, 1] - q[:, 1]
        h = torch.sin(dlat / 2).pow(2) + torch.cos(p[:, 0]) * torch.cos(q[:, 0]) * torch.sin(dlon / 2).pow(2)
        if fix == "eps":
            h = h + 1e-10
        root = torch.sqrt(h)  # <-- origin
        return (2 * torch.asin(root)).mean()

    return Case(m, loss_fn, data, B.adam(m))
