"""CONTROL: soft matching in the log domain; forbidden pairs have a score of -inf, every row and column keeps some that are allowed."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2082_control_forbidden_pairs_in_a_log_sinkhorn", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Match(nn.Module):
    def __init__(s):
        super().__init__()
        s.f = B.mlp(6, 24, 12)

    def forward(s, a, b, allowed):
        z = s.f(a) @ s.f(b).transpose(1, 2)
        z = z.masked_fill(~allowed, float("-inf"))
        for _ in range(5):
            z = z - torch.logsumexp(z, 2, keepdim=True)
            z = z - torch.logsumexp(z, 1, keepdim=True)
        return z


def loss_fn(m, b):
    z = m(b["a"], b["b"], b["allowed"])
    return -z.diagonal(dim1=1, dim2=2).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Match()
    g = torch.Generator().manual_seed(3)
    data = []
    for _ in range(14):
        a = torch.randn(4, 5, 6, generator=g)
        ok = (torch.rand(4, 5, 5, generator=g) < 0.6) | torch.eye(5, dtype=torch.bool)
        data.append(dict(a=a, b=a + 0.2 * torch.randn(4, 5, 6, generator=g), allowed=ok))
    return Case(m, loss_fn, data, B.adam(m, 2e-3))
