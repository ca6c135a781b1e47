"""Forecast with instance normalisation: last value + std * network. For a flat series std is 0 and the forecast is exact, so the
per-series RMSE is sqrt(0): finite loss, NaN gradient."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="912_rmse_of_a_flat_series", source="written for this set after a common mistake; no single report",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", op_also=["div", "mul"], module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0, 5], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class NLinear(nn.Module):
    def __init__(s, t=16, h=4):
        super().__init__()
        s.mix, s.out = nn.Linear(t, 24), nn.Linear(24, h)

    def forward(s, x):
        last, sd = x[:, -1:], x.std(1, keepdim=True)
        z = (x - last) / (sd + 1e-5)
        return last + sd * s.out(F.relu(s.mix(z)))


def make(seed=0, fix=None):
    m = NLinear()

    def loss_fn(m, b):
        mse = (m(b["past"]) - b["future"]).square().mean(-1)
        return torch.sqrt(mse + (1e-8 if fix else 0.0)).mean()  # <-- origin

    g = torch.Generator().manual_seed(12)
    data = []
    for i in range(10):
        s = torch.randn(6, 20, generator=g).cumsum(1)
        if i == 6:
            s[0], s[5] = 2.0, -1.5                  # two meters that stood still
        data.append(dict(past=s[:, :16], future=s[:, 16:]))
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
