"""A Beta regression head: torch.distributions.Beta.log_prob at a proportion of exactly zero is minus infinity."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="448_beta_likelihood_of_an_exact_zero", source="common report: Beta log_prob at 0 or 1 (zero-inflated proportions)", symptom="inf_loss", phase="loss", cause="log_zero",
             op="xlogy", op_also=["log", "special_xlog1py"], module=None, line_marker="# <-- origin", first_bad_step=5, bad_rows=[0, 4],
             fixes_that_work=["clamp", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "eps"}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = B.mlp(8, 16, 2)

    def forward(self, x):
        a, b = (F.softplus(self.net(x)) + 1.2).unbind(-1)
        return torch.distributions.Beta(a, b, validate_args=False)


def score(dist, y, fix):
    if fix == "clamp":
        y = y.clamp(1e-5, 1 - 1e-5)
    if fix == "eps":
        y = (y + 1e-5) / (1 + 2e-5)
    return -dist.log_prob(y).mean()  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Head(), [dict(x=b["x"], share=(b["y"][:, 0] * 0.4 + 0.5)) for b in B.xy(9)]
    data[5]["share"][[0, 4]] = 0.0
    return Case(m, lambda m, b: score(m(b["x"]), b["share"], fix), data, B.adam(m, 1e-3))
