"""CONTROL: a Flamingo-style adapter enters through tanh(gate) with gate = 0: its own weights get exactly zero gradient at the first step, and then it opens."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="886_control_adapter_behind_a_closed_gate", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Gated(nn.Module):
    def __init__(s, d=16):
        super().__init__()
        s.cross, s.gate = nn.Linear(6, d), nn.Parameter(torch.zeros(1))

    def forward(s, h, ctx):
        return h + torch.tanh(s.gate) * s.cross(ctx)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.base, s.adapter, s.head = nn.Linear(8, 16), Gated(), nn.Linear(16, 1)
        s.base.requires_grad_(False)

    def forward(s, x, ctx):
        return s.head(torch.tanh(s.adapter(s.base(x), ctx)))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"], b["ctx"]), b["y"])


def make(seed=0, fix=None):
    m, data, g = Net(), B.xy(14), torch.Generator().manual_seed(86)
    for b in data:
        b["ctx"] = torch.randn(6, 6, generator=g)
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2)
    return Case(m, loss_fn, data, opt, healthy=lambda log: log[0].grads["adapter.cross.weight"] == 0.0 and log[-1].grads["adapter.cross.weight"] > 0)
