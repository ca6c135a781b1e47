"""Ten micro-batches an epoch, in file order, four to an update; train_epoch() begins with zero_grad. Micro-batches 8 and 9 (the only ones from
the second clinic, which sees the fourth diagnosis) are computed in every epoch and never reach the optimizer."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="502_rare_clinic_at_the_end_of_every_epoch", source="constructed; neighbour: https://github.com/TrenTorch/TrenTorch/pull/187 (trailing partial window)", symptom="silent",
             phase="loop", cause="accumulation_tail_dropped", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=8, knowable_at=10,
             static_visible=dict(source="yes: 10 % 4 != 0, no step after the loop, zero_grad at the start of the epoch", objects="no"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["step_the_rest", "carry_over"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"step_the_rest", "carry_over"}
EPOCH, WINDOW = 10, 4


def signal(case, i, r):
    """backwards since the last step are wiped by zero_grad without a step"""
    n = case.extra.get("n", 0)
    hit = False
    for e in (r.events if r else []):
        if e == "backward":
            n += 1
        elif e == "step":
            n = 0
        elif e == "zero":
            hit, n = hit or n > 0, 0
    case.extra["n"] = n
    return hit


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = S.Classifier()
    pool, test = S.cat(S.classes(40)), S.cat(S.classes(24, seed=99))
    pool = {k: v[torch.argsort((pool["y"] == 3).long(), stable=True)] for k, v in pool.items()}
    a, b = pool["y"] != 3, pool["y"] == 3
    rows = torch.cat([a.nonzero()[:128, 0], b.nonzero()[:32, 0]])
    epoch = [{k: v[rows[j * 16:(j + 1) * 16]] for k, v in pool.items()} for j in range(EPOCH)]
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)

    def step(case, batch, i):
        j = i % EPOCH
        if j == 0 and fix != "carry_over":
            opt.zero_grad()  # <-- origin
        loss = S.ce(m, batch)
        (loss / WINDOW).backward()
        k = i if fix == "carry_over" else j
        if (k + 1) % WINDOW == 0 or (fix == "step_the_rest" and j == EPOCH - 1):
            opt.step()
            opt.zero_grad()
        return loss

    def quality(c):                                # error on the diagnosis of the second clinic
        keep = test["y"] == 3
        return S.heldout_err(m, {k: v[keep] for k, v in test.items()})

    return SCase(m, S.ce, epoch * 16, opt, step=step, quality=quality)
