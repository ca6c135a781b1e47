"""Bond angle acos(u.v / |u||v|) in a molecular network: for a linear molecule that must not be deformed the cosine is exactly -1. The
angle is right, its derivative is infinite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="914_angle_of_a_linear_molecule", source="written for this set after a common mistake; no single report",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="acos", op_also=["mul", "neg", "rsqrt"], module="geometry.angle", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[4], fixes_that_work=["clamp_inside", "skip_batch", "drop_rows"], fixes_that_do_not=["clamp_to_domain", "clip", "lr_down"])
FIXES = {"clamp_inside", "clamp_to_domain"}


class Angle(nn.Module):
    fix = None

    def forward(s, pos):
        u, v = pos[:, 0] - pos[:, 1], pos[:, 2] - pos[:, 1]
        cos = (u * v).sum(-1) / (torch.linalg.vector_norm(u, dim=-1) * torch.linalg.vector_norm(v, dim=-1))
        if s.fix == "clamp_inside":
            cos = cos.clamp(-1 + 1e-6, 1 - 1e-6)
        if s.fix == "clamp_to_domain":
            cos = cos.clamp(-1.0, 1.0)
        return torch.acos(cos)  # <-- origin


class Geometry(nn.Module):
    def __init__(s):
        super().__init__()
        s.angle, s.length = Angle(), nn.Parameter(torch.ones(1))

    def forward(s, pos):
        return torch.stack([s.angle(pos), s.length * (pos[:, 0] - pos[:, 1]).square().sum(-1)], -1)


class Molecule(nn.Module):
    def __init__(s):
        super().__init__()
        s.move, s.geometry, s.energy = B.mlp(8, 24, 9), Geometry(), nn.Linear(2, 1)

    def forward(s, x, base, loose):
        return s.energy(s.geometry(base + 0.3 * loose[:, None, None] * s.move(x).view(-1, 3, 3)))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"], b["base"], b["loose"]), b["y"])


def make(seed=0, fix=None):
    m, data, g = Molecule(), B.xy(10), torch.Generator().manual_seed(14)
    m.geometry.angle.fix = fix
    for b in data:
        b["base"], b["loose"] = torch.randn(6, 3, 3, generator=g), torch.ones(6)
    data[5]["base"][4] = torch.tensor([[-1.0, 0, 0], [0, 0, 0], [2.0, 0, 0]])
    data[5]["loose"][4] = 0.0
    return Case(m, loss_fn, data, B.adam(m))
