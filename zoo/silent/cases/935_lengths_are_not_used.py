"""Sensor frames padded with zeros, lengths in the batch; the error is averaged over all frames and most of them are padding."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="935_lengths_are_not_used", source="constructed", symptom="silent", phase="loss", cause="padding_in_loss", op=None, module=None, bad_rows=None, line_marker="# <-- origin",
             first_bad_step=0, knowable_at=0, static_visible=dict(source="yes: lengths are not used", objects="no"), quality_limit=2.0, margin=1.5,
             fixes_that_work=["by_length"], fixes_that_do_not=["lr_up", "lr_down", "clip"])
FIXES = {"by_length"}


def frames(n, seed, bs=8, T=32):
    g, w = torch.Generator().manual_seed(seed), torch.randn(6, 3, generator=torch.Generator().manual_seed(3))
    out = []
    for _ in range(n):
        ln = torch.randint(2, 5, (bs,), generator=g)
        ln[0] = T if torch.rand((), generator=g) < 0.2 else 6
        x = torch.randn(bs, T, 6, generator=g) * (torch.arange(T)[None] < ln[:, None])[..., None]
        out.append({"x": x, "y": (torch.tanh(x @ w) + 2.0) * (torch.arange(T)[None] < ln[:, None])[..., None], "n": ln})
    return out


def signal(case, i, r):
    return i >= 0 and not case.extra["masked"]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3)), S.cat(frames(20, 88))

    def loss_fn(m, b):
        err = (m(b["x"]) - b["y"]).pow(2).mean(-1)
        real = torch.arange(err.shape[1])[None] < b["n"][:, None]
        return err[real].mean() if fix else err.mean()  # <-- origin

    def quality(c):
        real = torch.arange(test["x"].shape[1])[None] < test["n"][:, None]
        return S.in_eval(m, lambda: (m(test["x"]) - test["y"]).pow(2).mean(-1)[real].mean())

    return SCase(m, loss_fn, frames(100, 5), torch.optim.Adam(m.parameters(), lr=1e-2), quality=quality, extra={"masked": bool(fix)})
