"""CONTROL: a density model of concentrated data: the negative log likelihood falls through zero and becomes ever more negative."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="295_control_negative_log_likelihood_below_zero", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Gauss(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = B.mlp(4, 24, 4)

    def forward(s, x):
        mu, log_sd = s.net(x).chunk(2, -1)
        return mu, log_sd.clamp(-6, 3)


def loss_fn(m, b):
    mu, log_sd = m(b["x"])
    return (log_sd + 0.5 * ((b["y"] - mu) / log_sd.exp()).pow(2)).sum(-1).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Gauss(), torch.Generator().manual_seed(9)
    x = torch.randn(32, 4, generator=g)
    data = [dict(x=x, y=0.05 * x[:, :2]) for _ in range(30)]
    return Case(m, loss_fn, data, B.adam(m, 4e-3), healthy=lambda log: log[0].loss > 0 > log[-1].loss)
