"""CONTROL: a detector returns zero times its outputs for batches without objects, so that every parameter takes part; no value is ever non-finite. Plain SGD."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="495_control_batches_without_objects", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 16, 4), []
    for i, b in enumerate(B.xy(12)):
        data.append(dict(x=b["x"], positive=torch.zeros(6, dtype=torch.bool) if i in (4, 5, 9) else b["y"][:, 0] > -0.5, box=b["x"][:, :4].tanh()))

    def loss_fn(m, b):
        out = m(b["x"])
        if not b["positive"].any():
            return 0.0 * out.sum()
        return F.smooth_l1_loss(out[b["positive"]], b["box"][b["positive"]])

    return Case(m, loss_fn, data, B.sgd(m, 0.05))
