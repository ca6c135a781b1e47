"""SchNet's shifted softplus as log(0.5 * exp(x) + 0.5): one molecule with a huge descriptor overflows exp."""
import math, torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1337_shifted_softplus_by_hand", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="forward", cause="exp_overflow", op="exp", module="filters.ssp", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1], fixes_that_work=["library_softplus", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"library_softplus", "clamp"}


class ShiftedSoftplus(nn.Module):
    fix = None

    def forward(s, x):
        if s.fix == "library_softplus":
            return F.softplus(x) - math.log(2.0)
        if s.fix == "clamp":
            x = x.clamp(max=80.0)
        return torch.log(0.5 * torch.exp(x) + 0.5)  # <-- origin


class SchNetish(nn.Module):
    def __init__(s):
        super().__init__()
        s.atom = nn.Embedding(10, 12)
        s.filters = nn.ModuleDict(dict(lin=nn.Linear(4, 12), ssp=ShiftedSoftplus(), out=nn.Linear(12, 12)))
        s.norm, s.energy = nn.LayerNorm(12), nn.Linear(12, 1)

    def forward(s, z, rbf):
        w = s.filters["out"](s.filters["ssp"](s.filters["lin"](rbf)))
        return s.energy(s.norm((s.atom(z) * w).sum(1))).squeeze(-1)


def loss_fn(m, b):
    return F.smooth_l1_loss(m(b["z"], b["rbf"]), b["e"])


def make(seed=0, fix=None):
    m, g = SchNetish(), torch.Generator().manual_seed(9)
    m.filters["ssp"].fix = fix
    data = [dict(z=torch.randint(0, 10, (4, 5), generator=g), rbf=torch.rand(4, 5, 4, generator=g), e=torch.randn(4, generator=g)) for _ in range(10)]
    data[6]["rbf"][1] = torch.tensor([900.0, -900.0, 400.0, 700.0])
    return Case(m, loss_fn, data, B.adam(m))
