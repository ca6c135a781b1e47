"""A sound event model in pure half precision squares the magnitude spectrum of a slammed door: 300 ** 2 is more than 65504."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2038_power_spectrum_squared_in_half", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="pow", module="power", line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[2], fixes_that_work=["upcast_module", "bf16", "fp32", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"upcast_module", "bf16", "fp32"}


class Power(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.fix = fix
        s.register_buffer("mel", torch.rand(20, 6) / 20)

    def forward(s, mag):
        if s.fix == "upcast_module":
            return torch.log1p(mag.float().pow(2) @ s.mel.float()).to(mag.dtype)
        p = mag.pow(2)  # <-- origin
        return torch.log1p(p @ s.mel)


class Sed(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.power, s.net = Power(fix), nn.Sequential(nn.Linear(6, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, 4))

    def forward(s, mag):
        return s.net(s.power(mag)).mean(1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    dt = {"bf16": torch.bfloat16, "fp32": torch.float32}.get(fix, torch.float16)
    m = Sed(fix).to(dt)
    g = torch.Generator().manual_seed(71)
    data = [dict(mag=(20 * torch.rand(5, 9, 20, generator=g)).to(dt), y=torch.randint(0, 4, (5,), generator=g)) for _ in range(7)]
    data[3]["mag"][2, 4] = 300.0
    return Case(m, lambda m, b: F.cross_entropy(m(b["mag"]).float(), b["y"]), data, B.sgd(m, 1e-2))
