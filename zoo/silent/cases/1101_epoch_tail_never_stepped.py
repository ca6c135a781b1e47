"""An epoch has 10 micro-batches and the window is 4: zero_grad at the start of every epoch throws the last two away, every epoch the same ones.
The rows of the newest class were appended at the end of the file, so the model hardly ever hears of it."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1101_epoch_tail_never_stepped", source="constructed from the pattern (i + 1) % accum == 0 without a last step", symptom="silent", phase="loop",
             cause="accumulation_tail_dropped", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=10, knowable_at=10,
             static_visible=dict(source="yes: window condition without 'or last batch', zero_grad at the epoch start", objects="no: len(loader) % window != 0 is a hint"),
             quality_limit=0.8, margin=1.5, fixes_that_work=["flush_tail"], fixes_that_do_not=["lr_up", "lr_down", "longer"])
FIXES = {"flush_tail"}
EPOCH, WINDOW = 10, 4


def signal(case, i, r):
    """gradients of a backward are cleared before any step has used them"""
    case.extra["ev"] = case.extra.get("ev", []) + (r.events if r else [])
    return "backward zero" in " ".join(case.extra["ev"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    pool = S.cat(S.classes(20))
    old, new = (pool["y"] != 3).nonzero()[:, 0], (pool["y"] == 3).nonzero()[:, 0]
    rows = torch.cat([old[:136], new[:24]])                 # the file: old recordings, then the new ones
    epoch = [{k: v[rows[j:j + 16]] for k, v in pool.items()} for j in range(0, 160, 16)]

    def step(case, b, i):
        k = i % EPOCH
        if k == 0:
            case.optimizer.zero_grad()  # <-- origin
        loss = S.ce(m, b)
        (loss / WINDOW).backward()
        if (k + 1) % WINDOW == 0 or (fix and k == EPOCH - 1):
            case.optimizer.step()
            case.optimizer.zero_grad()
        return loss

    return SCase(m, S.ce, epoch * 12, torch.optim.Adam(m.parameters(), lr=5e-3), step=step, quality=lambda c: S.heldout_ce(m, test))
