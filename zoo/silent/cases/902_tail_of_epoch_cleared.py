"""Window of 4, epochs of 10 batches read in file order, gradients cleared at the start of every epoch: the last two batches of each epoch, and so the
class that lives in the last file, never reach the optimizer."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="902_tail_of_epoch_cleared", source="constructed", symptom="silent", phase="loop",
             cause="accumulation_tail_dropped", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=8, knowable_at=10,
             static_visible=dict(source="yes: zero_grad at epoch start, step only on full windows, 10 % 4 != 0", objects="no"),
             quality_limit=0.6, margin=2.0, fixes_that_work=["flush_tail"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"flush_tail"}
EPOCH, WINDOW = 10, 4


def waves(n, bs, ks, seed):
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        y = torch.tensor(ks)[torch.randint(0, len(ks), (bs,), generator=g)]
        t = torch.arange(16.0)
        x = torch.sin((0.4 + 0.55 * y[:, None]) * t + 6.28 * torch.rand(bs, 1, generator=g)) + 0.3 * torch.randn(bs, 16, generator=g)
        out.append({"x": x[:, None], "y": y})
    return out


def signal(case, i, r):
    """gradients thrown away that no step has used"""
    case.extra["ev"] = case.extra.get("ev", []) + (r.events if r else [])
    return "backward zero" in " ".join(case.extra["ev"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    files = waves(8, 16, [0, 1, 2], 0) + waves(2, 16, [3], 1)         # the epoch in file order
    test = S.cat(waves(16, 16, [0, 1, 2, 3], 2))
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)

    def step(case, b, i):
        j = i % EPOCH
        if j == 0:
            opt.zero_grad()  # <-- origin
        loss = S.ce(m, b)
        (loss / WINDOW).backward()
        if (j + 1) % WINDOW == 0 or (fix and j == EPOCH - 1):
            opt.step()
            opt.zero_grad()
        return loss

    return SCase(m, S.ce, files * 20, opt, step=step, quality=lambda c: S.heldout_ce(m, test))
