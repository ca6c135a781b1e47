"""A differentiable ray tracer learns a refractive index. Beyond the critical angle sin(t) is above 1 and asin is NaN; torch.where puts
pi/2 there. The picture is right, the gradient is 0 * NaN."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="709_total_reflection_behind_where", source="common report: torch.where and NaN gradients of the branch not taken",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="asin", module="lens.surface", line_marker="# <-- origin", first_bad_step=6, bad_rows=[1, 3, 7],
             fixes_that_work=["double_where", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"double_where", "clamp"}


class Surface(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.index, self.fix = nn.Parameter(torch.tensor(1.30)), fix

    def forward(self, incidence):
        sine = self.index * torch.sin(incidence)
        passes = sine < 1.0
        if self.fix == "double_where":
            sine = torch.where(passes, sine, torch.zeros_like(sine))
        if self.fix == "clamp":
            sine = sine.clamp(max=1 - 1e-6)
        refracted = torch.asin(sine)  # <-- origin
        return torch.where(passes, refracted, torch.full_like(sine, math.pi / 2))


class Scene(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.lens = nn.ModuleDict({"surface": Surface(fix), "shade": nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))})

    def forward(self, incidence):
        out = self.lens["surface"](incidence)
        return self.lens["shade"](torch.stack([out.sin(), out.cos()], -1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Scene(fix), torch.Generator().manual_seed(79)
    rays = [dict(angle=torch.rand(9, generator=g) * 0.7, rgb=torch.rand(9, 3, generator=g)) for _ in range(9)]
    rays[6]["angle"][[1, 3, 7]] = torch.tensor([1.1, 1.3, 1.5])
    return Case(m, lambda m, b: F.mse_loss(m(b["angle"]), b["rgb"]), rays, torch.optim.Adam(m.parameters(), lr=1e-3))
