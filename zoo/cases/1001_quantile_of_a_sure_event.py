"""A copula layer maps probabilities to normal scores with ndtri. A saturated sigmoid gives a probability of exactly one, whose score is
infinite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="1001_quantile_of_a_sure_event", source="common report: icdf of 0 or 1 is infinite",
             symptom="nan_loss", phase="forward", cause="domain_edge_grad", op="special_ndtri", module="scores", line_marker="# <-- origin", first_bad_step=5, bad_rows=[2],
             fixes_that_work=["clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp"}


class Scores(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fix = fix

    def forward(self, p):
        if self.fix == "clamp":
            p = p.clamp(1e-5, 1 - 1e-5)
        return torch.special.ndtri(p)  # <-- origin


class Copula(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.margin, self.scores, self.joint = nn.Linear(5, 4), Scores(fix), nn.Linear(4, 4, bias=False)

    def forward(self, x):
        z = self.scores(torch.sigmoid(self.margin(x)))
        return self.joint(z) - z


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Copula(fix), torch.Generator().manual_seed(101)
    data = [torch.randn(7, 5, generator=g) for _ in range(10)]
    data[5][2] = 90.0
    return Case(m, lambda m, x: m(x).square().mean(), data, torch.optim.Adam(m.parameters(), lr=1e-3))
