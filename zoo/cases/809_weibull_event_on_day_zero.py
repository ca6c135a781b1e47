"""Weibull survival model: the log density holds (k - 1) * log(t); one patient had the event on the day of admission, t = 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="809_weibull_event_on_day_zero", source="written for this set after a common mistake; no single report",
             symptom="inf_loss", phase="loss", cause="log_zero", op="log", op_also=["mul"], module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class Hazard(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.shape, s.scale = B.mlp(8, 24, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(s, x):
        h = torch.tanh(s.body(x))
        return F.softplus(s.shape(h)).squeeze(-1) + 0.3, F.softplus(s.scale(h)).squeeze(-1) + 1.0


def make(seed=0, fix=None):
    m = Hazard()

    def loss_fn(m, b):
        k, lam = m(b["x"])
        t = b["t"] + (1e-3 if fix == "eps" else 0.0)
        log_t = torch.log(t)  # <-- origin
        log_f = k.log() - k * lam.log() + (k - 1) * log_t
        return (-(b["event"] * log_f) + (t / lam) ** k).mean()

    data, g = B.xy(11), torch.Generator().manual_seed(89)
    for b in data:
        b["t"] = 0.2 + 3 * torch.rand(6, generator=g)
        b["event"] = (torch.rand(6, generator=g) > 0.3).float()
    data[6]["t"][1], data[6]["event"][1] = 0.0, 1.0
    return Case(m, loss_fn, data, B.adam(m))
