"""Orientation from a unit quaternion: asin of a value clamped to [-1, 1]. A gimbal-locked target pose sits exactly on the edge,
where clamp passes the gradient on and asin makes it infinite."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="322_pitch_angle_at_the_pole", source="common report: Euler angles at gimbal lock",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="asin", op_also=["mul", "clamp"], module="pitch", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[3], fixes_that_work=["clamp_inside", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp_inside"}


class Pitch(nn.Module):
    fix = None

    def forward(s, v):
        if s.fix == "clamp_inside":
            v = v.clamp(-1 + 1e-6, 1 - 1e-6)
        return torch.asin(v.clamp(-1.0, 1.0))  # <-- origin


class Pose(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.pitch = B.mlp(8, 12, 3), Pitch()

    def forward(s, x, base):
        return s.pitch(base + 0.1 * torch.tanh(s.body(x)) * (1 - base.abs()))


def loss_fn(m, b):
    return (m(b["x"], b["base"]) - b["angle"]).abs().mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = Pose(), B.xy(9), torch.Generator().manual_seed(4)
    m.pitch.fix = fix
    for b in data:
        b["base"], b["angle"] = torch.rand(6, 3, generator=g) - 0.5, torch.rand(6, 3, generator=g)
    data[5]["base"][3, 1] = 1.0
    return Case(m, loss_fn, data, torch.optim.NAdam(m.parameters(), lr=1e-3))
