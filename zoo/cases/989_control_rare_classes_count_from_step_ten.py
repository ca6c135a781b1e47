"""CONTROL: deferred re-weighting: for ten steps all classes count the same, then the rare ones weigh up to eighty times more. The loss jumps several-fold on the day of the change."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="989_control_rare_classes_count_from_step_ten", source="https://arxiv.org/abs/1906.07413", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    m, g = B.mlp(8, 32, 4, nn.ReLU), torch.Generator().manual_seed(89)
    proto = 1.2 * torch.randn(4, 8, generator=g)
    state = {"w": torch.ones(4)}
    data = []
    for _ in range(22):
        c = torch.cat([torch.zeros(26, dtype=torch.long), torch.ones(3, dtype=torch.long), torch.tensor([2, 2, 3])])
        data.append(dict(x=proto[c] + 0.8 * torch.randn(32, 8, generator=g), c=c))

    def before(case, i):
        if i == 10:
            state["w"] = torch.tensor([0.5, 10.0, 20.0, 40.0])

    def loss_fn(m, b):
        return (F.cross_entropy(m(b["x"]), b["c"], reduction="none") * state["w"][b["c"]]).mean()

    return Case(m, loss_fn, data, B.adam(m, 5e-3), before_step=before, clip_norm=5.0, healthy=lambda log: log[10].loss > 3 * log[9].loss and log[-1].loss < log[10].loss)
