"""Weibull survival likelihood: an event at time 0 (admitted and discharged the same hour) makes log(t) -inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2300_weibull_time_zero',
             source='own, from practice',
             symptom='nan_loss',
             phase='loss',
             cause='log_zero',
             op='log',
             op_also=[],
             module=None,
             line_marker='# <-- origin',
             first_bad_step=6,
             bad_rows=[2],
             fixes_that_work=['clamp', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip', 'lr_down'])
FIXES = {'clamp'}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 16, 2), B.xy(11)
    for b in data:
        b["t"] = b["y"][:, 0].abs() + 0.1
    data[6]["t"][2] = 0.0

    def loss_fn(m, b):
        k, lam = F.softplus(m(b["x"])).unbind(1)
        k, lam = k + 0.5, lam + 0.5
        t = b["t"].clamp_min(1e-4) if fix == "clamp" else b["t"]
        logt = torch.log(t)  # <-- origin
        z = k * (logt - lam.log())
        return -(k.log() - logt + z - z.exp()).mean()

    return Case(m, loss_fn, data, B.adam(m))
