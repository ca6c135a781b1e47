"""CONTROL: windows of 4 in epochs of 10 micro-batches with unequal row counts; the last window has 2 and is stepped, every loss is a sum divided by the rows of its window."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1182_control_accumulation_short_last_window", source="standard practice", looks_like=["accumulation_tail_dropped", "accumulation_weighting", "accumulation_cleared"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.5)
EPOCH, WINDOW = 10, 4


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    data = [{k: v[:6 + 5 * (i % 3)] for k, v in b.items()} for i, b in enumerate(S.classes(80))]

    def step(case, b, i):
        k, e = i % EPOCH, i - i % EPOCH
        lo = k // WINDOW * WINDOW
        rows = sum(len(c["y"]) for c in data[e + lo:e + min(lo + WINDOW, EPOCH)])
        if k % WINDOW == 0:
            case.optimizer.zero_grad()
        loss = F.cross_entropy(m(b["x"]), b["y"], reduction="sum")
        (loss / rows).backward()
        if (k + 1) % WINDOW == 0 or k == EPOCH - 1:
            case.optimizer.step()
        return loss / len(b["y"])

    return SCase(m, S.ce, data, torch.optim.Adam(m.parameters(), lr=2e-2), step=step, quality=lambda c: S.heldout_ce(m, test))
