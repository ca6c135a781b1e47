"""A spectral layer uses the scaled complementary error function. Far to the left it grows like exp(x^2) and overflows."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="1002_voigt_profile_of_a_hot_line", source="common report: erfcx overflows for negative arguments",
             symptom="nan_loss", phase="forward", cause="exp_overflow", op="special_erfcx", module="profile", line_marker="# <-- origin", first_bad_step=4, bad_rows=[0, 3],
             fixes_that_work=["clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp"}


class Profile(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.width, self.fix = nn.Parameter(torch.ones(3)), fix

    def forward(self, offset):
        u = offset * self.width
        if self.fix == "clamp":
            u = u.clamp_min(-4.0)
        return torch.special.erfcx(u)  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = nn.Sequential(), torch.Generator().manual_seed(102)
    m.add_module("profile", Profile(fix))
    m.add_module("mix", nn.Linear(3, 2))
    data = [(torch.rand(5, 3, generator=g), torch.rand(5, 2, generator=g)) for _ in range(9)]
    data[4][0][[0, 3]] = -30.0
    return Case(m, lambda m, b: F.l1_loss(m(b[0]), b[1]), data, torch.optim.SGD(m.parameters(), lr=1e-3))
