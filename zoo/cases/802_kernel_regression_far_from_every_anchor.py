"""Nadaraya-Watson layer in half precision: exp(-d^2/2) of a query far from all anchors rounds to zero for every anchor, and the
weighted mean is 0/0. In single precision the same weights are about 1e-9 and do no harm."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="802_kernel_regression_far_from_every_anchor", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="forward", cause="fp16_underflow", op="div", module="smoother", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[1, 5], fixes_that_work=["fp32", "bf16", "upcast_module", "eps", "skip_batch", "drop_rows"],
             fixes_that_do_not=["clip", "lr_down"])
FIXES = {"fp32", "bf16", "upcast_module", "eps"}


class Smoother(nn.Module):
    fix = None

    def __init__(s, k=10, d=4):
        super().__init__()
        s.anchors, s.values = nn.Parameter(0.7 * torch.randn(k, d)), nn.Parameter(0.1 * torch.randn(k, 8))

    def forward(s, q):
        a, v = s.anchors, s.values
        if s.fix == "upcast_module":
            q, a, v = q.float(), a.float(), v.float()
        d2 = (q[:, None] - a).square().sum(-1)
        w = torch.exp(-0.5 * d2)
        total = w.sum(-1, keepdim=True)
        if s.fix == "eps":
            total = total + 1e-3
        return ((w @ v) / total).to(s.anchors.dtype)  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.smoother, s.head = Smoother(), nn.Linear(8, 1)

    def forward(s, x):
        return s.head(s.smoother(x))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"].to(m.head.weight.dtype)).float(), b["y"])


def make(seed=0, fix=None):
    m = Net().to({"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16))
    m.smoother.fix = fix
    data = B.xy(11, bs=7, d=4)
    for b in data:
        b["x"] = 0.5 * b["x"]
    data[7]["x"][1] = torch.tensor([3.6, -3.5, 3.4, 3.5])
    data[7]["x"][5] = torch.tensor([-3.7, 3.5, -3.6, 3.3])
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-2))
