"""Demand forecast with a ReLU output and the symmetric MAPE loss: forecast and actual are both exactly zero for one item, 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="806_smape_of_two_silent_weeks", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=8, bad_rows=[3], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "fp64"])
FIXES = {"eps", "fp64"}


class Forecaster(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc, s.dec = nn.GRU(1, 16, batch_first=True), nn.Linear(16, 4)

    def forward(s, x, scale):
        return F.relu(s.dec(s.enc(x[..., None])[0][:, -1]) + 1.0) * scale[:, None]


def make(seed=0, fix=None):
    m = Forecaster()
    if fix == "fp64":
        m = m.double()

    def loss_fn(m, b):
        dt = torch.float64 if fix == "fp64" else torch.float32
        y, p = b["future"].to(dt), m(b["past"].to(dt), b["level"].to(dt))
        den = y.abs() + p.abs()
        if fix == "eps":
            den = den + 1e-6
        return (2 * (p - y).abs() / den).mean()  # <-- origin

    g = torch.Generator().manual_seed(86)
    data = []
    for i in range(12):
        level = 1 + 4 * torch.rand(5, generator=g)
        sales = torch.rand(5, 16, generator=g) * level[:, None] + 0.1
        if i == 8:
            sales[3], level[3] = 0.0, 0.0          # the shop was closed: nothing sold, scale of nothing
        data.append(dict(past=sales[:, :12], future=sales[:, 12:], level=level))
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
