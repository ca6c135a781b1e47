"""Hand-written softplus where(x > 20, x, log(1 + exp(x))): exp overflows in the branch that is not taken and its derivative is
0 * inf. The time step of a small state-space layer goes through it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="221_where_softplus_trap", source="https://github.com/tracel-ai/burn/issues/5373",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="exp", op_also=["mul", "log", "log1p", "add"], module="layers.1.softplus", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[2], fixes_that_work=["double_where", "library_softplus", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"double_where", "library_softplus"}


class Softplus(nn.Module):
    fix = None

    def forward(s, x):
        if s.fix == "library_softplus":
            return F.softplus(x)
        arg = x.clamp(max=20.0) if s.fix == "double_where" else x
        e = torch.exp(arg)  # <-- origin
        return torch.where(x > 20, x, torch.log(1 + e))


class ScanLayer(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.dt, s.inp, s.softplus = nn.Linear(d, d), nn.Linear(d, d), Softplus()

    def forward(s, x):
        step, u, h, out = s.softplus(s.dt(x)), s.inp(x), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            keep = torch.exp(-step[:, t])
            h = keep * h + (1 - keep) * u[:, t]
            out.append(h)
        return torch.stack(out, 1)


class SSM(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.layers, s.head = nn.Linear(3, 8), nn.ModuleList(ScanLayer(8) for _ in range(2)), nn.Linear(8, 1)

    def forward(s, x, boost):
        h = s.layers[0](s.embed(x))
        return s.head(s.layers[1](h * boost[:, None, None])[:, -1])


def loss_fn(m, b):
    return F.mse_loss(m(b["x"], b["boost"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = SSM(), torch.Generator().manual_seed(6)
    for layer in m.layers:
        layer.softplus.fix = fix
    data = [dict(x=torch.randn(4, 6, 3, generator=g), boost=torch.ones(4), y=torch.randn(4, 1, generator=g)) for _ in range(10)]
    data[7]["boost"][2] = 4000.0                  # gain of a badly calibrated sensor
    return Case(m, loss_fn, data, B.adam(m))
