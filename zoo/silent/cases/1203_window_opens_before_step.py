"""The accumulation branch was written as 'new window: clear, then step': zero_grad(set_to_none=False) stands before optimizer.step. Adam sees
zero gradients only, and AdamW's decay is all that moves the weights."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1203_window_opens_before_step", source="constructed", symptom="silent", phase="loop",
             cause="zero_grad_before_step", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=1, knowable_at=1,
             static_visible=dict(source="yes: zero_grad directly before step", objects="no"),
             quality_limit=0.7, margin=1.5, fixes_that_work=["step_then_zero"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"step_then_zero"}
WINDOW = 2


def signal(case, i, r):
    """the last thing before step is zero_grad"""
    return bool(r) and "zero step" in " ".join(r.events)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    opt = torch.optim.AdamW(m.parameters(), lr=1e-2, weight_decay=0.01)

    def step(case, b, i):
        loss = S.ce(m, b)
        (loss / WINDOW).backward()
        if (i + 1) % WINDOW == 0:
            if not fix:
                opt.zero_grad(set_to_none=False)  # <-- origin
            opt.step()
            if fix:
                opt.zero_grad(set_to_none=False)
        return loss

    return SCase(m, S.ce, S.classes(80), opt, step=step, quality=lambda c: S.heldout_ce(m, test))
