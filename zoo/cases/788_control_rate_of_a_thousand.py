"""CONTROL: fitting permeabilities in SI units: the parameters are of order 1, the residuals of order 1e-4, so the mean squared error is 1e-8
and plain SGD needs a rate of several thousand. It is the right one: the loss falls smoothly."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="788_control_rate_of_a_thousand", source="common sight: physics fits in SI units with SGD", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Darcy(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.k = nn.Parameter(torch.ones(n))

    def forward(self, grad_p):
        return 1e-2 * (grad_p @ self.k)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Darcy(4), torch.Generator().manual_seed(96)
    true = torch.tensor([1.4, 0.7, 1.1, 0.9])
    data = []
    for _ in range(16):
        gp = torch.randn(64, 4, generator=g)
        data.append((gp, 1e-2 * (gp @ true)))
    return Case(m, lambda m, b: (m(b[0]) - b[1]).square().mean(), data, torch.optim.SGD(m.parameters(), lr=1500.0), healthy=lambda log: log[-1].loss < 0.3 * log[0].loss)
