"""Activation checkpointing around blocks with a multiplicative gate exp(g(x)): one far sample overflows in the second block."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from protocol import Case
import blocks as B
TRUTH = dict(id="317_checkpointed_gate_overflow", source="common report: unbounded exponential gates (xLSTM-like)",
             symptom="nan_loss", phase="forward", cause="exp_overflow", op="exp", op_also=["mul"], module="blocks.1", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[4], fixes_that_work=["clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp"}


class Gated(nn.Module):
    fix = None

    def __init__(s):
        super().__init__()
        s.gate, s.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(s, x):
        g = s.gate(x)
        if s.fix == "clamp":
            g = g.clamp(max=10.0)
        e = torch.exp(g)  # <-- origin
        return x + torch.tanh(s.value(x)) * (e / (1 + e))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.blocks, s.head = nn.ModuleList(Gated() for _ in range(3)), nn.Linear(8, 1)

    def forward(s, x):
        for block in s.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return s.head(x)


def loss_fn(m, b):
    return F.smooth_l1_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(9)
    with torch.no_grad():
        for i, block in enumerate(m.blocks):
            block.fix = fix
            block.gate.weight.mul_(0.2 if i != 1 else 1.0)
        m.blocks[1].gate.weight.abs_()
    data[5]["x"][4] = 120.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
