"""Alignment and uniformity without the unit sphere: one batch comes with pixels of 0..255, every pair lies so far apart that all kernels underflow and the log is of zero."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2105_uniformity_of_points_that_left_the_sphere", source="written for the unseen set, no public report",
             symptom="inf_loss", phase="loss", cause="log_zero", op="log", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=None, fixes_that_work=["eps", "clamp", "logsumexp", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp", "logsumexp"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.Sequential()
    m.body, m.act, m.proj = nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8, bias=False)

    def loss_fn(m, b):
        u, v = m(b["one"]), m(b["two"])
        align = (u - v).square().sum(-1).clamp(max=50).mean()
        d = -2 * F.pdist(u).square()
        if fix == "logsumexp":
            return align + torch.logsumexp(d, 0) * 1e-3
        k = d.exp().mean()
        if fix == "clamp":
            k = k.clamp(min=1e-30)
        uniform = torch.log(k + (1e-20 if fix == "eps" else 0.0))  # <-- origin
        return align + uniform

    g = torch.Generator().manual_seed(41)
    data = []
    for k in range(10):
        x = torch.rand(8, 24, generator=g) * (255 if k == 6 else 1)
        data.append(dict(one=x + 0.05 * torch.randn(8, 24, generator=g), two=x + 0.05 * torch.randn(8, 24, generator=g)))
    return Case(m, loss_fn, data, B.sgd(m, 1e-2))
