"""Focal loss with gamma = 0.5: once p is exactly 1 the factor (1-p)**0.5 has an infinite slope; the loss is 0 there and the
gradient NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1335_focal_fractional_gamma", source="commonly reported; no link was looked up",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="pow", op_also=["mul", "sqrt"], module="criterion", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[3], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class Focal(nn.Module):
    eps = 0.0

    def forward(s, z, y):
        p = torch.where(y > 0, torch.sigmoid(z), torch.sigmoid(-z))
        focus = (1 - p + s.eps) ** 0.5  # <-- origin
        return -(focus * F.logsigmoid(torch.where(y > 0, z, -z))).mean()


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.net, s.criterion = nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 4)), Focal()

    def forward(s, x, margin, y):
        return s.criterion(s.net(x) + margin[:, None] * (2 * y - 1), y)


def loss_fn(m, b):
    return m(b["x"], b["margin"], b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(28)
    m.criterion.eps = 1e-6 if fix else 0.0
    data = [dict(x=torch.randn(6, 9, generator=g), margin=torch.zeros(6), y=torch.randint(0, 2, (6, 4), generator=g).float()) for _ in range(9)]
    data[5]["margin"][3] = 40.0                   # an example the previous stage had already solved
    return Case(m, loss_fn, data, B.adam(m))
