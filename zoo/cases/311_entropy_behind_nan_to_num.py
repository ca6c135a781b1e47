"""Entropy as nan_to_num(p * log p): the forward of an exact zero is repaired, its derivative is 0 * -inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="311_entropy_behind_nan_to_num", source="common report: nan_to_num after the fact does not help the gradient",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="mul", op_also=["log"], module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = B.mlp(8, 12, 4, nn.ReLU), B.xy(9), torch.Generator().manual_seed(4)

    def loss_fn(m, b):
        logits = m(b["x"])
        p = torch.softmax(logits, -1)
        if fix == "eps":
            p = p + 1e-8
        entropy = -torch.nan_to_num(p * torch.log(p)).sum(-1)  # <-- origin
        return F.cross_entropy(logits, b["c"]) - 0.01 * entropy.mean()

    for b in data:
        b["c"] = torch.randint(0, 4, (6,), generator=g)
    data[6]["x"][1] *= 3000.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
