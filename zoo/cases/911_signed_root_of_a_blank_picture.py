"""Bilinear pooling with the usual signed square root, sign(x) * sqrt(|x|): a blank picture has a zero outer product; the forward value
is 0, the derivative is 0 * inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="911_signed_root_of_a_blank_picture", source="written for this set after a common mistake; no single report",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", op_also=["div", "mul"], module="pool", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[2], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class BilinearPool(nn.Module):
    eps = 0.0

    def forward(s, h):
        f = h.flatten(2)
        z = (f @ f.transpose(1, 2) / f.shape[-1]).flatten(1)
        return torch.sign(z) * torch.sqrt(z.abs() + s.eps)  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv1, s.conv2 = nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.Conv2d(6, 6, 3, padding=1, bias=False)
        s.pool, s.head = BilinearPool(), nn.Linear(36, 3)

    def forward(s, x):
        return s.head(s.pool(torch.tanh(s.conv2(torch.tanh(s.conv1(x))))))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(11)
    m.pool.eps = 1e-6 if fix else 0.0
    data = [dict(x=torch.randn(5, 1, 7, 7, generator=g), y=torch.randint(0, 3, (5,), generator=g)) for _ in range(11)]
    data[7]["x"][2] = 0.0
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
