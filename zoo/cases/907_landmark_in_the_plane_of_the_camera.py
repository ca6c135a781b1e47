"""Reprojection loss of a pose network: f * X / Z. One landmark of the batch lies in the plane of the camera after the rigid motion,
Z = 0 exactly."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="907_landmark_in_the_plane_of_the_camera", source="written for this set after a common mistake; no single report",
             symptom="inf_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[2], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class PoseNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.trunk, s.shift = B.mlp(8, 32, 16, nn.ELU), nn.Linear(16, 2)

    def forward(s, x):
        return s.shift(F.elu(s.trunk(x)))


def make(seed=0, fix=None):
    m = PoseNet()

    def loss_fn(m, b):
        xy = b["pts"][..., :2] + m(b["x"])[:, None]
        z = b["pts"][..., 2:]
        if fix == "eps":
            z = z.clamp_min(0.05)
        uv = xy / z  # <-- origin
        return (uv - b["uv"]).abs().mean()

    data, g = B.xy(10), torch.Generator().manual_seed(7)
    for b in data:
        b["pts"] = torch.cat([torch.randn(6, 5, 2, generator=g), 1 + 3 * torch.rand(6, 5, 1, generator=g)], -1)
        b["uv"] = torch.randn(6, 5, 2, generator=g)
    data[5]["pts"][2, 3, 2] = 0.0
    return Case(m, loss_fn, data, B.adam(m))
