"""Inverse-frequency sample weights were computed with a frequency of zero: one weight in the batch is inf. The batch is a nested tuple."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="457_infinite_sample_weight", source="common report: inverse-frequency weights with unseen classes", symptom="inf_loss", phase="data", cause="bad_input", op=None, module=None,
             line_marker=None, input_key="weight", first_bad_step=3, bad_rows=[4], fixes_that_work=["drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = set()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g, data = B.mlp(8, 12, 3), torch.Generator().manual_seed(5), []
    for _ in range(7):
        data.append(((torch.randn(6, 8, generator=g),), (torch.randint(0, 3, (6,), generator=g), 0.5 + torch.rand(6, generator=g))))
    data[3][1][1][4] = torch.inf

    def loss_fn(m, b):
        (x,), (y, weight) = b
        return (F.cross_entropy(m(x), y, reduction="none") * weight).mean()

    return Case(net, loss_fn, data, B.adam(net, 1e-3))
