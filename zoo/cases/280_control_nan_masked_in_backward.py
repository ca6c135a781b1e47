"""CONTROL: logsumexp over an empty bag has a NaN derivative, but the masked_fill in front of it replaces exactly those entries
by 0 on the way back: a NaN is born in backward and no gradient ever sees it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="280_control_nan_masked_in_backward", source="https://github.com/pytorch/pytorch/issues/31829 (harmless here)", symptom="none", phase="none", cause="none", op=None,
             module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class SoftMaxPool(nn.Module):
    pad = float("-inf")

    def forward(s, scores, present):
        pooled = torch.logsumexp(scores.masked_fill(~present, s.pad), 1)
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
    data = []
    for _ in range(12):
        n = torch.randint(1, 7, (5,), generator=g)
        data.append(dict(x=torch.randn(5, 7, 5, generator=g), present=torch.arange(7)[None] < n[:, None], y=torch.randint(0, 2, (5,), generator=g).float()))
    data[6]["present"][0] = False
    return Case(m, loss_fn, data, B.adam(m))
