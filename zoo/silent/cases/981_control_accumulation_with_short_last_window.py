"""CONTROL: windows of 4 over epochs of 10 batches; the last window of an epoch has 2 micro-batches, is divided by 2 and stepped. zero_grad once per window, so backward runs up to four times without it."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="981_control_accumulation_with_short_last_window", source="standard practice", looks_like=["accumulation_tail_dropped", "missing_zero_grad", "accumulation_weighting"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.6)
EPOCH, WINDOW = 10, 4


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = nn.Sequential(nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(80, 4)), S.cat(S.classes(16, seed=99))
    opt = torch.optim.RAdam(m.parameters(), lr=5e-2)

    def step(case, b, i):
        j = i % EPOCH
        size = min(WINDOW, EPOCH - j // WINDOW * WINDOW)
        loss = S.ce(m, b)
        (loss / size).backward()
        if j % WINDOW == size - 1:
            opt.step()
            m.zero_grad()
        return loss

    return SCase(m, S.ce, S.classes(220), opt, step=step, quality=lambda c: S.heldout_ce(m, test))
