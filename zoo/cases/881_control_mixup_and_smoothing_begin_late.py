"""CONTROL: mixup and label smoothing are switched on at step 9, as planned: the loss jumps to many times its value and stays there."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="881_control_mixup_and_smoothing_begin_late", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    m, g = B.mlp(8, 64, 4, nn.ReLU), torch.Generator().manual_seed(81)
    centres = 3 * torch.randn(4, 8, generator=g)
    data = []
    for i in range(20):
        c = torch.randint(0, 4, (16,), generator=g)
        data.append(dict(x=centres[c] + 0.3 * torch.randn(16, 8, generator=g), c=c, late=torch.full((16,), i >= 9)))

    def loss_fn(m, b):
        if not bool(b["late"][0]):
            return F.cross_entropy(m(b["x"]), b["c"])
        y = F.one_hot(b["c"], 4).float()
        x, y = 0.6 * b["x"] + 0.4 * b["x"].flip(0), 0.6 * y + 0.4 * y.flip(0)
        return F.cross_entropy(m(x), y, label_smoothing=0.1)

    return Case(m, loss_fn, data, B.adam(m, 1e-2), healthy=lambda log: log[8].loss < 0.2 and log[9].loss > 4 * log[8].loss and all(r.loss_ok for r in log))
