"""Multiple-instance learning pools instance scores with logsumexp with an additive -inf mask. An empty bag gives -inf, which the floor
after it makes finite again; the derivative of logsumexp at all -inf is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="219_logsumexp_of_empty_bag", source="https://github.com/pytorch/pytorch/issues/31829",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="logsumexp", op_also=["sub", "exp", "mul"], module="pool", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0], fixes_that_work=["finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"finfo_min"}


class SoftMaxPool(nn.Module):
    pad = float("-inf")

    def forward(s, scores, present):
        mask = torch.zeros_like(scores).masked_fill(~present, s.pad)
        pooled = torch.logsumexp(scores + mask, 1)  # <-- origin
        return pooled.clamp_min(-20.0)


class Bags(nn.Module):
    def __init__(s):
        super().__init__()
        s.score, s.pool = B.mlp(5, 16, 1), SoftMaxPool()

    def forward(s, x, present):
        return s.pool(s.score(x)[..., 0], present)


def loss_fn(m, b):
    return F.binary_cross_entropy_with_logits(m(b["x"], b["present"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Bags(), torch.Generator().manual_seed(4)
    m.pool.pad = -1e9 if fix else float("-inf")
    data = []
    for _ in range(10):
        n = torch.randint(1, 7, (5,), generator=g)
        data.append(dict(x=torch.randn(5, 7, 5, generator=g), present=torch.arange(7)[None] < n[:, None], y=torch.randint(0, 2, (5,), generator=g).float()))
    data[6]["present"][0] = False
    return Case(m, loss_fn, data, B.adam(m))
