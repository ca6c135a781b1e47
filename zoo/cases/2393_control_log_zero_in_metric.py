"""CONTROL: the loss function also computes a metric without gradient that is -inf (log of a rounded probability); it is only kept for printing."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2393_control_log_zero_in_metric',
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
             fixes_that_do_not=[],
             nonfinite_in_passing=True)
FIXES = set()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, seen = B.mlp(8, 16, 3), B.xy(10), []
    for b in data:
        b["k"] = (b["y"][:, 0] > 0).long()

    def loss_fn(m, b):
        logits = m(b["x"])
        with torch.no_grad():
            seen.append(torch.log((logits.softmax(1) > 0.5).float()).mean())
        return F.cross_entropy(logits, b["k"])

    return Case(m, loss_fn, data, B.adam(m), extra={"metric": seen})
