"""clip_grad_norm_(1.0) stands before scaler.step() without unscale_: the gradients still carry the factor 65536, are cut to norm 1 and then divided by 65536. With SGD nothing moves to speak of."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="906_clip_before_unscale", source="constructed; documented pitfall of torch.amp", symptom="silent", phase="optimizer", cause="clip_throttles", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, also=["scaler_misuse"],
             static_visible=dict(source="yes: clip between scale().backward() and step() without unscale_", objects="no"),
             quality_limit=0.8, margin=2.0, fixes_that_work=["unscale_first", "no_clip"], fixes_that_do_not=["lr_up", "lr_down", "longer"])
FIXES = {"unscale_first", "no_clip"}


class Forecaster(nn.Module):
    def __init__(s):
        super().__init__()
        s.lstm, s.out = nn.LSTM(2, 20, batch_first=True), nn.Linear(20, 1)

    def forward(s, x):
        return s.out(s.lstm(x)[0][:, -1])[:, 0]


def series(n, seed, bs=16, T=12):
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        x = torch.randn(bs, T, 2, generator=g)
        out.append({"x": x, "y": 1.5 + x[:, -3:, 0].sum(1) - x[:, -1, 1]})
    return out


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def signal(case, i, r):
    """clipped while the gradients still carry the loss scale"""
    return bool(r) and bool(r.clip) and r.clip[-1][0] > 1e3 * r.clip[-1][1]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Forecaster(), S.cat(series(16, 1))
    opt, scaler = torch.optim.SGD(m.parameters(), lr=0.1), torch.amp.GradScaler("cpu")

    def step(case, b, i):
        opt.zero_grad(set_to_none=True)
        loss = loss_fn(m, b)
        scaler.scale(loss).backward()
        if fix == "unscale_first":
            scaler.unscale_(opt)
        if fix != "no_clip":
            torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)  # <-- origin
        scaler.step(opt)
        scaler.update()
        return loss

    return SCase(m, loss_fn, series(250, 0), opt, scaler=scaler, step=step, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
