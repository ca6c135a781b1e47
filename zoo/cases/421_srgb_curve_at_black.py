"""A photometric loss outside the model converts to sRGB with torch.where: the power law is not selected at black, and its infinite
slope leaks all the same."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="421_srgb_curve_at_black", source="common report: linear_to_srgb in differentiable rendering gives NaN gradients at 0",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="pow", module=None, line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[0, 3], fixes_that_work=["double_where", "clamp", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"double_where", "clamp", "eps"}


def linear_to_srgb(x, fix=None):
    low = 12.92 * x
    a = {"double_where": torch.where(x > 0.0031308, x, 0.5), "clamp": x.clamp(min=1e-4), "eps": x + 1e-4}.get(fix, x)
    high = 1.055 * a ** (1 / 2.4) - 0.055  # <-- origin
    return torch.where(x <= 0.0031308, low, high)


class Shader(nn.Module):
    def __init__(self):
        super().__init__()
        self.albedo = nn.Linear(5, 3)

    def forward(self, rays, light):
        return torch.sigmoid(self.albedo(rays)) * light


def photometric(m, b, fix):
    return F.mse_loss(linear_to_srgb(m(b["rays"], b["light"]), fix), b["rgb"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Shader(), torch.Generator().manual_seed(4), []
    for _ in range(8):
        data.append(dict(rays=torch.randn(5, 9, 5, generator=g), light=0.1 + torch.rand(5, 9, 1, generator=g), rgb=torch.rand(5, 9, 3, generator=g)))
    data[4]["light"][0, 2] = 0.0
    data[4]["light"][3, :] = 0.0
    return Case(m, lambda m, b: photometric(m, b, fix), data, B.adam(m, 1e-3))
