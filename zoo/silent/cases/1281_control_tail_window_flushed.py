"""CONTROL: window of four micro-batches, ten per epoch: the last window of an epoch is only two long, is divided by two and stepped."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1281_control_tail_window_flushed", source="standard practice", looks_like=["accumulation_tail_dropped", "accumulation_weighting", "missing_zero_grad"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.6)
WINDOW, EPOCH = 4, 10


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)

    def step(case, b, i):
        k = i % EPOCH
        size = min(WINDOW, EPOCH - k // WINDOW * WINDOW)
        loss = S.ce(m, b)
        (loss / size).backward()
        if (k + 1) % WINDOW == 0 or k + 1 == EPOCH:
            opt.step()
            opt.zero_grad()
        return loss

    return SCase(m, S.ce, S.classes(EPOCH) * 8, opt, step=step, quality=lambda c: S.heldout_ce(m, test))
