"""Differentiable rasteriser: barycentric weights are divided by the signed area of the face; two vertices of one face of one mesh
coincide, so the area is exactly zero."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="807_barycentric_weights_of_a_flat_triangle", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="render.interp", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0, 4], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


def cross(u, v):
    return u[..., 0] * v[..., 1] - u[..., 1] * v[..., 0]


class Interpolate(nn.Module):
    eps = 0.0

    def forward(s, p, tri, colour):
        a, b, c = tri.unbind(1)
        area = cross(b - a, c - a)
        parts = torch.stack([cross(b - p, c - p), cross(c - p, a - p), cross(a - p, b - p)], -1)
        if s.eps:
            area = torch.where(area.abs() < s.eps, torch.full_like(area, s.eps), area)
        w = parts / area[:, None]  # <-- origin
        return (w.clamp(-1, 2)[..., None] * colour).sum(1)


class Render(nn.Module):
    def __init__(s):
        super().__init__()
        s.interp = Interpolate()
        s.shade = nn.Linear(3, 3)

    def forward(s, p, tri, colour):
        return torch.sigmoid(s.shade(s.interp(p, tri, colour)))


class Mesh(nn.Module):
    def __init__(s):
        super().__init__()
        s.colours, s.render = B.mlp(6, 24, 9), Render()

    def forward(s, code, tri, p):
        return s.render(p, tri, s.colours(code).view(-1, 3, 3))


def loss_fn(m, b):
    return F.mse_loss(m(b["code"], b["tri"], b["p"]), b["rgb"])


def make(seed=0, fix=None):
    m, g = Mesh(), torch.Generator().manual_seed(87)
    m.render.interp.eps = 1e-3 if fix else 0.0
    data = []
    for i in range(10):
        tri = torch.randn(5, 3, 2, generator=g)
        data.append(dict(code=torch.randn(5, 6, generator=g), tri=tri, p=tri.mean(1), rgb=torch.rand(5, 3, generator=g)))
    for r in (0, 4):
        data[6]["tri"][r, 2] = data[6]["tri"][r, 1]
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
