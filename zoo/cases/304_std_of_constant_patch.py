"""A home-made normalisation divides by std + eps. For a constant patch the forward is finite, but the derivative of the root at zero
spread is infinite: the eps stands on the wrong side of the square root."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="304_std_of_constant_patch", source="common report: (x - mean) / (std + eps) on constant inputs",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", op_also=["div", "mul"], module="norm", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[4], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class PatchNorm(nn.Module):
    fix = None

    def forward(s, x):
        centred = x - x.mean((1, 2, 3), keepdim=True)
        if s.fix == "eps":
            return centred / torch.sqrt(x.var((1, 2, 3), keepdim=True) + 1e-6)
        return centred / (torch.sqrt(x.var((1, 2, 3), keepdim=True)) + 1e-6)  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.mix, s.norm, s.head = nn.Conv2d(1, 1, 1), PatchNorm(), nn.Linear(16, 3)

    def forward(s, x):
        return s.head(torch.tanh(s.norm(s.mix(x))).flatten(1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(2)
    m.norm.fix = fix
    data = [dict(x=torch.randn(6, 1, 4, 4, generator=g), y=torch.randint(0, 3, (6,), generator=g)) for _ in range(9)]
    data[5]["x"][4] = 0.0                         # a blank tile
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
