"""The squared error of a half-precision regressor is taken in fp16: a target 300 away from the prediction squares to 90000."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1309_fp16_squared_error_overflow", source="commonly reported; no link was looked up",
             symptom="inf_loss", phase="loss", cause="fp16_overflow", op="pow", op_also=["mul", "square"], module=None, line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[4], fixes_that_work=["fp32", "bf16", "upcast_module", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"fp32", "bf16", "upcast_module"}


class Thermo(nn.Module):
    def __init__(s):
        super().__init__()
        s.gru, s.out = nn.GRU(6, 16, batch_first=True), nn.Linear(16, 1)

    def forward(s, x):
        return s.out(s.gru(x)[0][:, -1])


def make(seed=0, fix=None):
    dt = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    m, g = Thermo().to(dt), torch.Generator().manual_seed(17)

    def loss_fn(m, b):
        err = m(b["x"].to(dt)) - b["kelvin"].to(dt)
        if fix == "upcast_module":
            err = err.float()
        return err.pow(2).mean(dim=1).div(6).sum()  # <-- origin

    data = [dict(x=torch.randn(6, 10, 6, generator=g), kelvin=60 + 40 * torch.rand(6, 1, generator=g)) for _ in range(10)]
    data[7]["kelvin"][4] = 310.0
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-5))
