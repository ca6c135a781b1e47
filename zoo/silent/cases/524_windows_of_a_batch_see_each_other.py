"""Forecasting with sliding windows in time order. The encoder is written for (T, B, D) and is fed (B, T, D): attention and positions run over the rows of
the batch. Row r+1 contains the target of row r, and the model reads it there."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="524_windows_of_a_batch_see_each_other", source="https://github.com/rish-16/tokenlearner-pytorch/issues/1, https://github.com/raoyongming/DenseCLIP/issues/55 (kind: batch and sequence swapped)", symptom="silent", phase="forward",
             cause="target_leak", op=None, module="encoder", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="no: batch_first is missing", objects="yes: change one row of the batch, the outputs of other rows change"),
             quality_limit=0.1, fixes_that_work=["batch_first"], fixes_that_do_not=["clip", "longer"])
FIXES = {"batch_first"}
T, ROWS, NOISE = 6, 16, 0.5


class Forecaster(nn.Module):
    def __init__(s, batch_first):
        super().__init__()
        s.batch_first, s.inp, s.pos = batch_first, nn.Linear(1, 24), nn.Embedding(32, 24)
        kw = {"batch_first": True} if batch_first else {}
        s.encoder = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, **kw)  # <-- origin
        s.out = nn.Linear(24, 1)

    def forward(s, x):
        p = s.pos(torch.arange(x.shape[1])) if s.batch_first else s.pos(torch.arange(x.shape[0]))[:, None]
        return s.out(s.encoder(s.inp(x[..., None]) + p))[:, -1, 0]


def windows(n, seed):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        z, e = [torch.zeros(())], torch.randn(ROWS + T + 8, generator=g)
        for v in e:
            z.append(0.8 * z[-1] + NOISE * v)
        z = torch.stack(z)[8:]
        w = z.unfold(0, T + 1, 1)[:ROWS]
        out.append({"x": w[:, :T].clone(), "y": w[:, T].clone()})
    return out


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def signal(case, i, r):
    x = torch.linspace(-1, 1, ROWS * T).view(ROWS, T)
    y = x.clone()
    y[-1] += 1
    with torch.no_grad():
        return float((case.model(x) - case.model(y))[:-1].abs().max()) > 1e-6


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Forecaster(bool(fix)), windows(30, 99)

    def quality(c):                                # how far below the variance of the noise (relative) on unseen, time-ordered windows
        mse = sum(S.in_eval(m, lambda: loss_fn(m, b)) for b in test) / len(test)
        return max(0.0, 1 - mse / NOISE ** 2)

    return SCase(m, loss_fn, windows(300, 5), torch.optim.Adam(m.parameters(), lr=3e-3), quality=quality)
