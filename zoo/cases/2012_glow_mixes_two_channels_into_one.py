"""Glow's invertible 1x1 convolution: a converter wrote one row of the mixing matrix twice, the log-determinant is -inf."""
import math
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2012_glow_mixes_two_channels_into_one", source="written for the unseen set, no public report",
             symptom="inf_loss", phase="forward", cause="log_zero", op="_linalg_slogdet", op_also=["linalg_slogdet", "slogdet"], module="steps.1.mix",
             line_marker="# <-- origin", first_bad_step=3, bad_rows=None, fixes_that_work=["init", "restore_weight"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"init"}


class Mix(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.weight = nn.Parameter(torch.linalg.qr(torch.randn(d, d)).Q)

    def forward(s, x):
        sign, logdet = torch.linalg.slogdet(s.weight)  # <-- origin
        return x @ s.weight.T, logdet


class Coupling(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.net = B.mlp(d // 2, 24, d)

    def forward(s, x):
        a, b = x.chunk(2, -1)
        t, r = s.net(a).chunk(2, -1)
        r = torch.tanh(r)
        return torch.cat([a, b * r.exp() + t], -1), r.sum(-1)


class Step(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.mix, s.couple = Mix(d), Coupling(d)

    def forward(s, x):
        x, a = s.mix(x)
        x, b = s.couple(x)
        return x, a + b


class Flow(nn.Module):
    def __init__(s, d=6):
        super().__init__()
        s.steps = nn.ModuleList(Step(d) for _ in range(3))

    def forward(s, x):
        total = 0.0
        for step in s.steps:
            x, ld = step(x)
            total = total + ld
        return x, total


def loss_fn(m, b):
    z, ld = m(b["x"])
    return (0.5 * z.pow(2).sum(-1) + 3 * math.log(2 * math.pi) - ld).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Flow()

    def converter(case, i):
        if i == 3 and fix != "init":
            w = case.model.steps[1].mix.weight
            with torch.no_grad():
                w.zero_()
                w.fill_diagonal_(1.0)
                w[4, 4], w[4, 2] = 0.0, 1.0

    return Case(m, loss_fn, [dict(x=b["x"]) for b in B.xy(8, bs=10, d=6)], B.adam(m, 1e-3), before_step=converter)
