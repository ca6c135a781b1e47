"""CONTROL: chemical kinetics in float64: the partition sums and the pre-exponential factors reach 1e180, their logarithm enters the loss.
Everything is far outside float32 and finite."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="782_control_rate_constants_in_float64", source="common sight: Arrhenius fits in float64", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Arrhenius(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.log_a, self.energy = nn.Parameter(torch.linspace(300.0, 415.0, n)), nn.Parameter(torch.linspace(4.0, 9.0, n))

    def forward(self, inv_t):
        rate = torch.exp(self.log_a) * torch.exp(-self.energy * inv_t[:, None])
        return rate, rate.sum(1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Arrhenius(3).double(), torch.Generator().manual_seed(91)
    data = [{"inv_t": 0.5 + torch.rand(8, generator=g, dtype=torch.float64), "log_k": 400 + torch.randn(8, generator=g, dtype=torch.float64)} for _ in range(10)]

    def loss_fn(m, b):
        rate, total = m(b["inv_t"])
        return (total.log() - b["log_k"]).square().mean()

    return Case(m, loss_fn, data, torch.optim.Adam([{"params": [m.log_a], "lr": 0.1}, {"params": [m.energy], "lr": 0.01}]))
