"""Performer-style linear attention with positive random features exp(w.x - |x|^2/2), but the stabilising maximum (and the norm term)
was left out: one loud sample overflows exp."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="814_random_features_of_a_long_query", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="forward", cause="exp_overflow", op="exp", module="blocks.0.features", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[3], fixes_that_work=["clamp", "subtract_max", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp", "subtract_max"}


class Features(nn.Module):
    fix = None

    def __init__(s, d, m=24):
        super().__init__()
        s.register_buffer("w", torch.randn(d, m))

    def forward(s, x):
        a = x @ s.w
        if s.fix == "subtract_max":
            a = a - a.amax((1, 2), keepdim=True).detach()
        if s.fix == "clamp":
            a = a.clamp(-20, 20)
        return torch.exp(a) + 1e-6  # <-- origin


class Linear(nn.Module):
    def __init__(s, d=16):
        super().__init__()
        s.q, s.k, s.v, s.features = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), Features(d)

    def forward(s, x):
        q, k = s.features(s.q(x)), s.features(s.k(x))
        kv = torch.einsum("btm,btd->bmd", k, s.v(x))
        return x + torch.einsum("btm,bmd->btd", q, kv) / (q * k.sum(1, keepdim=True)).sum(-1, keepdim=True)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.blocks, s.norm, s.head = nn.Linear(5, 16), nn.ModuleList([Linear(), Linear()]), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(s, x):
        h = s.inp(x)
        for blk in s.blocks:
            h = blk(h)
        return s.head(s.norm(h).mean(1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(94)
    for blk in m.blocks:
        blk.features.fix = fix
    data = [dict(x=torch.randn(4, 12, 5, generator=g), y=torch.randint(0, 3, (4,), generator=g)) for _ in range(11)]
    data[7]["x"][3] *= 60.0                        # gain of the recorder was wrong
    return Case(m, loss_fn, data, B.adam(m))
