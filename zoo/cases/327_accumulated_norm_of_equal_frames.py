"""Gradient accumulation over four micro-batches; in the second of a group two neighbouring frames are equal and the motion
energy sum^0.5 has no slope. The optimizer steps two micro-batches later."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="327_accumulated_norm_of_equal_frames", source="common report: one micro-batch spoils the accumulated gradient",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="pow", op_also=["mul"], module="motion", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[0], fixes_that_work=["eps", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Motion(nn.Module):
    fix = None

    def forward(s, h):
        energy = (h[:, 1:] - h[:, :-1]).square().sum(-1)
        return (energy + (1e-8 if s.fix == "eps" else 0.0)) ** 0.5  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.frame, s.motion, s.out = nn.Linear(5, 7), Motion(), nn.Linear(3, 1)

    def forward(s, x):
        return s.out(s.motion(torch.tanh(s.frame(x))))


def loss_fn(m, b):
    return nn.functional.smooth_l1_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(2)
    m.motion.fix = fix
    data = [dict(x=torch.randn(3, 4, 5, generator=g), y=torch.randn(3, 1, generator=g)) for _ in range(12)]
    data[5]["x"][0, 2] = data[5]["x"][0, 1]
    return Case(m, loss_fn, data, B.adam(m, 1e-3), accumulation=4, clip_norm=1.0)
