"""A root-mean-square norm as x * rsqrt(mean(x^2)) with no eps meets a token whose features are all switched off."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="334_rms_norm_without_eps", source="common report: rsqrt of zero in a hand-written RMSNorm",
             symptom="nan_loss", phase="forward", cause="zero_division", op="rsqrt", op_also=["mul"], module="stack.1.norm", line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[1, 2], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class RMS(nn.Module):
    eps = 0.0

    def forward(s, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s.eps)  # <-- origin


class Layer(nn.Module):
    def __init__(s, i, o):
        super().__init__()
        s.norm, s.lin = RMS(), nn.Linear(i, o, bias=False)

    def forward(s, x, keep):
        return s.lin(s.norm(x)) * keep


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.stack, s.head = nn.ModuleList([Layer(8, 12), Layer(12, 6)]), nn.Linear(6, 1)

    def forward(s, x, keep):
        for layer in s.stack:
            x = layer(x, keep)
        return s.head(x)


def loss_fn(m, b):
    return F.l1_loss(m(b["x"], b["keep"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(8)
    for layer in m.stack:
        layer.norm.eps = 1e-6 if fix == "eps" else 0.0
    for b in data:
        b["keep"] = torch.ones(6, 1)
    data[3]["keep"][1:3] = 0.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
