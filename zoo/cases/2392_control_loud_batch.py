"""CONTROL: one batch is forty times louder than the others; the loss spikes, Adam takes it and training goes on."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2392_control_loud_batch',
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


def loss_fn(m, b):
    return F.smooth_l1_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 16, 1), B.xy(14)
    data[8]["x"] = data[8]["x"] * 40
    data[8]["y"] = data[8]["y"] * 40
    return Case(m, loss_fn, data, B.adam(m, 3e-3), clip_norm=5.0)
