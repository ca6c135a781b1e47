"""CONTROL: an energy model in float64 whose unnormalised weights reach 1e150 before the logarithm: beyond every single-precision number and perfectly sound in double."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="985_control_partition_function_in_double", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Energy(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = B.mlp(6, 32, 5)

    def forward(s, x):
        return s.net(x) + 340.0


def loss_fn(m, b):
    w = torch.exp(m(b["x"]))
    return (torch.log(w.sum(-1)) - torch.log(w.gather(1, b["c"][:, None]).squeeze(1))).mean()


def make(seed=0, fix=None):
    m, g = Energy().double(), torch.Generator().manual_seed(85)
    proto = torch.randn(5, 6, generator=g, dtype=torch.float64)
    data = []
    for _ in range(14):
        c = torch.randint(0, 5, (12,), generator=g)
        data.append(dict(x=proto[c] + 0.3 * torch.randn(12, 6, generator=g, dtype=torch.float64), c=c))
    return Case(m, loss_fn, data, B.adam(m, 1e-2), healthy=lambda log: log[-1].loss < log[0].loss and all(r.grad_ok for r in log))
