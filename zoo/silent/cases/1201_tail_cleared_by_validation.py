"""Gradient accumulation (window 4) over an epoch of ten batches; validation runs at the end of every epoch and begins with zero_grad 'to free
memory'. The gradients of batches 8 and 9 are thrown away, and because the file is read in order they are the same samples every epoch."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1201_tail_cleared_by_validation", source="constructed", symptom="silent", phase="loop",
             cause="accumulation_tail_dropped", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=9, knowable_at=9,
             static_visible=dict(source="yes: no step for the remainder of the epoch", objects="no"),
             quality_limit=0.6, margin=1.5, fixes_that_work=["flush_tail"], fixes_that_do_not=["clip", "longer"])
FIXES = {"flush_tail"}
WINDOW, EPOCH = 4, 10


def signal(case, i, r):
    """gradients that were accumulated are cleared without a step in between"""
    case.extra["ev"] = case.extra.get("ev", []) + (r.events if r else [])
    ev = [e for e in case.extra["ev"] if e in ("backward", "step", "zero")]
    return i >= EPOCH - 1 and any(a == "backward" and b == "zero" for a, b in zip(ev, ev[1:]))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, val, test = S.Classifier(), S.cat(S.classes(2, seed=5)), S.cat(S.classes(16, seed=99))
    pool = S.cat(S.classes(EPOCH))
    order = torch.argsort(pool["y"], stable=True)          # the file is sorted by class
    n = int((pool["y"] < 3).sum())
    front = order[:n][torch.randperm(n, generator=torch.Generator().manual_seed(4))]
    order = torch.cat([front, order[n:]])
    epoch = [{k: v[order[j * 16:(j + 1) * 16]] for k, v in pool.items()} for j in range(EPOCH)]
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)

    def step(case, b, i):
        k = i % EPOCH
        loss = S.ce(m, b)
        (loss / WINDOW).backward()
        if (k + 1) % WINDOW == 0 or (fix and k + 1 == EPOCH):
            opt.step()
            opt.zero_grad()
        return loss

    def validate():
        opt.zero_grad(set_to_none=True)  # <-- origin
        return S.heldout_ce(m, val)

    def after(case, i):
        if (i + 1) % EPOCH == 0:
            case.extra["val"] = validate()

    return SCase(m, S.ce, epoch * 8, opt, step=step, after_step=after, quality=lambda c: S.heldout_ce(m, test))
