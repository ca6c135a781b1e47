"""Primer's squared ReLU in a half-precision model: any pre-activation above 256 overflows; one loud recording gets there."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1308_fp16_squared_relu_overflow", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="pow", op_also=["mul", "square"], module="mixer.1.act",
             line_marker="# <-- origin", first_bad_step=5, bad_rows=[0],
             fixes_that_work=["fp32", "bf16", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"fp32", "bf16", "clamp"}


class SquaredReLU(nn.Module):
    cap = None

    def forward(s, x):
        x = F.relu(x)
        if s.cap:
            x = x.clamp(max=s.cap)
        return x ** 2  # <-- origin


class Mix(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.up, s.act, s.down, s.norm = nn.Linear(d, 2 * d), SquaredReLU(), nn.Linear(2 * d, d), nn.LayerNorm(d)

    def forward(s, x):
        return s.norm(x + s.down(s.act(s.up(x))))


class Audio(nn.Module):
    def __init__(s, d=16):
        super().__init__()
        s.inp, s.mixer, s.out = nn.Linear(20, d), nn.Sequential(Mix(d), Mix(d)), nn.Linear(d, 3)

    def forward(s, x, gain):
        h = s.mixer[0](s.inp(x)) * gain[:, None, None]   # loudness put back after the first norm
        return s.out(s.mixer[1](h).mean(1))


def make(seed=0, fix=None):
    dt = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    m, g = Audio().to(dt), torch.Generator().manual_seed(13)
    if fix == "clamp":
        for l in m.mixer:
            l.act.cap = 200.0

    def loss_fn(m, b):
        return F.cross_entropy(m(b["x"].to(dt), b["gain"].to(dt)).float(), b["y"])

    data = [dict(x=torch.randn(5, 9, 20, generator=g), gain=1 + torch.rand(5, generator=g), y=torch.randint(0, 3, (5,), generator=g)) for _ in range(9)]
    data[5]["gain"][0] = 900.0
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-3))
