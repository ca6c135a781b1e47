"""CONTROL: set encoder takes the maximum with padding at -inf; an empty set gives -inf, which is replaced by a learned vector before anything is computed with it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="889_control_maximum_over_an_empty_set", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class SetMax(nn.Module):
    def __init__(s):
        super().__init__()
        s.phi, s.nothing, s.rho = B.mlp(5, 24, 12, nn.ReLU), nn.Parameter(torch.zeros(12)), nn.Linear(12, 1)

    def forward(s, x, n):
        pad = torch.arange(x.shape[1])[None] >= n[:, None]
        top = s.phi(x).masked_fill(pad[..., None], float("-inf")).amax(1)
        return s.rho(torch.where((n == 0)[:, None], s.nothing, top))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"], b["n"]), b["y"])


def make(seed=0, fix=None):
    m, g = SetMax(), torch.Generator().manual_seed(89)
    data = [dict(x=torch.randn(6, 7, 5, generator=g), n=torch.randint(0, 8, (6,), generator=g), y=torch.randn(6, 1, generator=g)) for _ in range(12)]
    data[4]["n"][2] = 0
    return Case(m, loss_fn, data, B.adam(m, 3e-3), healthy=lambda log: all(r.loss_ok and r.grad_ok for r in log))
