"""One record carries a sensor's error code as a value, 3.4e+28: it is finite, its square is not."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1320_unit_error_outlier", source="commonly reported; no link was looked up",
             symptom="inf_loss", phase="data", cause="bad_input", op=None, module=None, line_marker=None, input_key="x",
             first_bad_step=6, bad_rows=[1], fixes_that_work=["drop_rows", "skip_batch", "clamp_input"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp_input"}


class AutoEncoder(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc, s.dec = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3)), nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 12))

    def forward(s, x):
        return s.dec(s.enc(x))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["x"])


def make(seed=0, fix=None):
    m, g = AutoEncoder(), torch.Generator().manual_seed(31)
    data = [dict(x=torch.randn(5, 12, generator=g)) for _ in range(11)]
    data[6]["x"][1, 7] = 3.4e28
    if fix:
        for b in data:
            b["x"].clamp_(-10, 10)
    return Case(m, loss_fn, data, B.adam(m))
