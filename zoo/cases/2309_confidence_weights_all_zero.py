"""Weighted loss sum(w*l)/sum(w): in one batch every pseudo-label has confidence 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2309_confidence_weights_all_zero',
             source='own, from practice',
             symptom='nan_loss',
             phase='loss',
             cause='zero_division',
             op='div',
             op_also=[],
             module=None,
             line_marker='# <-- origin',
             first_bad_step=6,
             bad_rows=None,
             fixes_that_work=['guard', 'skip_batch'],
             fixes_that_do_not=['clip', 'lr_down'])
FIXES = {'guard'}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 16, 1), B.xy(10)
    g = torch.Generator().manual_seed(6)
    for i, b in enumerate(data):
        b["w"] = torch.rand(6, generator=g) * (i != 6)

    def loss_fn(m, b):
        each = (m(b["x"]) - b["y"]).pow(2).squeeze(1)
        total = b["w"].sum()
        if fix == "guard":
            total = total.clamp_min(1e-6)
        return (b["w"] * each).sum() / total  # <-- origin

    return Case(m, loss_fn, data, B.adam(m))
