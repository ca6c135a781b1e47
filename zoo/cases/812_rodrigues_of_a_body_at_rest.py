"""Rotation from an axis-angle vector: where(theta > 1e-6, sin(theta)/theta, 1). For a body at rest the vector is zero: the forward
value is 1, but the branch not taken, 0/0, poisons the gradient."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="812_rodrigues_of_a_body_at_rest", source="written for this set after a common mistake; no single report",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="div", op_also=["mul"], module="kinematics.rotate", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[4], fixes_that_work=["double_where", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"double_where"}


class Rotate(nn.Module):
    safe = False

    def forward(s, omega, v):
        theta = torch.linalg.vector_norm(omega, dim=-1, keepdim=True)
        moving = theta > 1e-6
        if s.safe:
            theta = torch.where(moving, theta, torch.ones_like(theta))
            a = torch.where(moving, torch.sin(theta) / theta, torch.ones_like(theta))
        else:
            a = torch.where(moving, torch.sin(theta) / theta, torch.ones_like(theta))  # <-- origin
        return v + a * torch.linalg.cross(omega, v)


class Kinematics(nn.Module):
    def __init__(s):
        super().__init__()
        s.rate, s.rotate = nn.Linear(8, 3, bias=False), Rotate()

    def forward(s, x, v):
        return s.rotate(s.rate(x), v)


class Body(nn.Module):
    def __init__(s):
        super().__init__()
        s.kinematics, s.head = Kinematics(), nn.Linear(3, 3)

    def forward(s, x, v):
        return s.head(s.kinematics(x, v))


def loss_fn(m, b):
    return F.l1_loss(m(b["x"], b["v"]), b["w"])


def make(seed=0, fix=None):
    m, data, g = Body(), B.xy(10), torch.Generator().manual_seed(92)
    m.kinematics.rotate.safe = bool(fix)
    for b in data:
        b["v"], b["w"] = torch.randn(6, 3, generator=g), torch.randn(6, 3, generator=g)
    data[6]["x"][4] = 0.0
    return Case(m, loss_fn, data, B.adam(m))
