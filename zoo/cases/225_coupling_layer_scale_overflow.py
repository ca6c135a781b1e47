"""Normalising flow with affine coupling y = x * exp(s(x)) + t(x) and an unbounded s: one far-away sample overflows exp in the
second layer."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="225_coupling_layer_scale_overflow", source="https://github.com/VincentStimper/normalizing-flows/issues/47",
             symptom="nan_loss", phase="forward", cause="exp_overflow", op="exp", op_also=["mul"], module="flows.1", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[5], fixes_that_work=["clamp", "soft_clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "soft_clamp"}


class Coupling(nn.Module):
    fix = None

    def __init__(s):
        super().__init__()
        s.net = B.mlp(2, 16, 4, nn.ReLU)

    def forward(s, x):
        keep, move = x.chunk(2, -1)
        log_s, t = s.net(keep).chunk(2, -1)
        if s.fix == "clamp":
            log_s = log_s.clamp(-5, 5)
        if s.fix == "soft_clamp":
            log_s = 2 * torch.tanh(log_s / 2)
        scale = torch.exp(log_s)  # <-- origin
        return torch.cat([move * scale + t, keep], -1), log_s.sum(-1)


class Flow(nn.Module):
    def __init__(s):
        super().__init__()
        s.flows = nn.ModuleList(Coupling() for _ in range(3))

    def forward(s, x):
        total = 0
        for f in s.flows:
            x, ld = f(x)
            total = total + ld
        return x, total


def loss_fn(m, b):
    z, logdet = m(b["x"])
    return (0.5 * z.pow(2).sum(-1) - logdet).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Flow(), torch.Generator().manual_seed(2)
    for f in m.flows:
        f.fix = fix
    with torch.no_grad():
        m.flows[1].net.fc1.weight.abs_()
        m.flows[1].net.fc2.weight[:2].abs_()      # the scale of the second layer grows with its input
    data = [dict(x=torch.randn(6, 4, generator=g)) for _ in range(9)]
    data[6]["x"][5] = torch.tensor([0.1, -0.2, 6000.0, 6000.0])
    return Case(m, loss_fn, data, B.adam(m, 1e-4))
