"""Mish written as x * tanh(log(1 + exp(x))): exp overflows for a large input, tanh(log(inf)) is still 1 and the loss looks perfect, but
backward multiplies 0 by inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="918_mish_written_out", source="written for this set after a common mistake; no single report",
             symptom="nan_grad", phase="backward", cause="exp_overflow", op="exp", op_also=["mul", "log", "add"], module="body.act", line_marker="# <-- origin",
             first_bad_step=8, bad_rows=[1], fixes_that_work=["library_softplus", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"library_softplus", "clamp"}


class Mish(nn.Module):
    fix = None

    def forward(s, x):
        if s.fix == "library_softplus":
            return x * torch.tanh(F.softplus(x))
        a = x.clamp(max=30.0) if s.fix == "clamp" else x
        return x * torch.tanh(torch.log(1 + torch.exp(a)))  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.body = nn.Sequential()
        s.body.add_module("fc", nn.Linear(8, 24))
        s.body.add_module("act", Mish())
        s.body.add_module("norm", nn.LayerNorm(24))
        s.head = nn.Linear(24, 1)

    def forward(s, x):
        return s.head(s.body(x))


def loss_fn(m, b):
    return F.smooth_l1_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, data = Net(), B.xy(12)
    m.body.act.fix = fix
    data[8]["x"][1] *= 300.0
    return Case(m, loss_fn, data, B.adam(m))
