"""Demand forecasting with gradient accumulation: `if batch_idx % 4 == 0: zero_grad()`, `if batch_idx % 4 == 3: step()`, batch_idx restarts every epoch and an epoch has ten
batches in file order. Batches 8 and 9, the weekend days at the end of the file, are cleared at the next epoch's batch 0 and never reach an update."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
TRUTH = dict(id="1302_window_cleared_at_batch_index_zero", source="constructed from the pattern if batch_idx % n == 0: zero_grad()", symptom="silent", phase="loop",
             cause="accumulation_tail_dropped", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=8, knowable_at=10,
             static_visible=dict(source="yes: both conditions look at batch_idx, nothing handles the last batch of an epoch", objects="no"),
             quality_limit=0.35, margin=2.0, fixes_that_work=["flush_tail"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"flush_tail"}
PER_EPOCH, EPOCHS, WINDOW = 10, 60, 4


class Forecast(nn.Module):
    def __init__(s):
        super().__init__()
        s.day, s.net = nn.Embedding(7, 4), nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(s, x, day):
        return s.net(torch.cat([x, s.day(day)], -1)).squeeze(-1)


def loss_fn(m, b):
    return F.mse_loss(m(b["x"], b["day"]), b["y"])


def days(n, bs, lo, hi, g):
    out = []
    for _ in range(n):
        x, day = torch.randn(bs, 6, generator=g), torch.randint(lo, hi, (bs,), generator=g)
        y = torch.where(day < 5, 0.8 * x[:, 0] - 0.5 * x[:, 1], 1.5 - 0.8 * x[:, 0] + 0.7 * x[:, 2]) + 0.05 * torch.randn(bs, generator=g)
        out.append({"x": x, "day": day, "y": y})
    return out


def signal(case, i, r):
    """an epoch is over and its last backwards were cleared without an update"""
    case.extra["ev"] = case.extra.get("ev", []) + [e for e in (r.events if r else []) if e in ("zero", "backward", "step")]
    s = " ".join(case.extra["ev"])
    return i >= 0 and "step zero backward backward zero" in s


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Forecast(), torch.Generator().manual_seed(22)
    epoch = days(8, 16, 0, 5, g) + days(2, 16, 5, 7, g)
    test = days(1, 512, 5, 7, g)[0]

    def step(case, b, i):
        batch_idx = i % PER_EPOCH
        if batch_idx % WINDOW == 0:  # <-- origin
            case.optimizer.zero_grad()
        loss = loss_fn(m, b)
        (loss / WINDOW).backward()
        if batch_idx % WINDOW == WINDOW - 1 or (fix and batch_idx == PER_EPOCH - 1):
            case.optimizer.step()
        return loss

    def quality(c):                                # squared error on the weekends of the test year
        with torch.no_grad():
            return float(loss_fn(m, test))

    return SCase(m, loss_fn, epoch * EPOCHS, torch.optim.Adam(m.parameters(), lr=1e-2), step=step, quality=quality)
