"""CONTROL: fitting masses to forces in SI units with float64: the loss is about 1e57, far beyond float32, and everything is finite."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="684_control_orbits_in_si_units", source="common sight: physics in double precision and SI units", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Gravity(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_mass = nn.Parameter(torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64))

    def forward(self, distance):
        mass = self.log_mass.exp() * 1e30
        pairs = torch.stack([mass[0] * mass[1], mass[0] * mass[2], mass[1] * mass[2]])
        return 6.674e-11 * pairs / distance.square()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Gravity(), torch.Generator().manual_seed(3)
    true = torch.tensor([1.5, 1.2, 0.2], dtype=torch.float64).exp() * 1e30
    data = []
    for _ in range(12):
        r = 1e11 * (1 + torch.rand(6, 3, generator=g, dtype=torch.float64))
        data.append(dict(r=r, force=6.674e-11 * torch.stack([true[0] * true[1], true[0] * true[2], true[1] * true[2]]) / r.square()))
    return Case(m, lambda m, b: (m(b["r"]) - b["force"]).square().sum(), data, torch.optim.Adam(m.parameters(), lr=0.03))
