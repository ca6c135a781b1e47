"""Denoising diffusion: the collate function seeds its own generator ('reproducible'), so every batch, worker and epoch gets the same noise and the same times, row by row. The network learns the
sixteen noise vectors by their times; fresh noise it cannot remove."""
import math, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="919_noise_seeded_in_collate", source="constructed", symptom="silent", phase="data", cause="worker_same_seed", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=1, knowable_at=1, static_visible=dict(source="yes: a generator seeded with a constant inside collate", objects="yes: noise and t of all batches are equal"),
             quality_limit=0.65, margin=1.5, fixes_that_work=["one_generator"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"one_generator"}


class Denoiser(nn.Module):
    def __init__(s, d=4, h=64):
        super().__init__()
        s.freq = nn.Parameter(torch.arange(1, 9.0), requires_grad=False)
        s.inp, s.mid, s.out = nn.Linear(d + 16, h), nn.Linear(h, h), nn.Linear(h, d)

    def forward(s, x, t):
        e = t[:, None] * s.freq
        h = F.silu(s.inp(torch.cat([x, e.sin(), e.cos()], -1)))
        return s.out(F.silu(s.mid(h)))


def collate(x0, g):
    t, noise = torch.rand(len(x0), generator=g), torch.randn(x0.shape, generator=g)
    a = torch.cos(t * math.pi / 2)[:, None]
    return {"x0": x0, "xt": a * x0 + (1 - a * a).sqrt() * noise, "t": t, "noise": noise}


def loss_fn(m, b):
    return F.mse_loss(m(b["xt"], b["t"]), b["noise"])


def signal(case, i, r):
    return i >= 1 and torch.equal(case.batches[i]["noise"], case.batches[i - 1]["noise"]) and not torch.equal(case.batches[i]["x0"], case.batches[i - 1]["x0"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, one = Denoiser(), torch.Generator().manual_seed(1234)
    raw = [b["x"] for b in S.classes(260, bs=16, d=4, noise=0.3)]
    batches = [collate(x, one if fix else torch.Generator().manual_seed(1234)) for x in raw]  # <-- origin
    test = collate(torch.cat([b["x"] for b in S.classes(32, d=4, noise=0.3, seed=9)]), torch.Generator().manual_seed(5))
    return SCase(m, loss_fn, batches, torch.optim.Adam(m.parameters(), lr=3e-3), quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
