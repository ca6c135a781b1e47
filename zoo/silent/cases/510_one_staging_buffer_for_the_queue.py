"""The prefetcher fills one staging buffer and puts a reference to it into the queue: when training begins all entries hold what was read last."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="510_one_staging_buffer_for_the_queue", source="constructed: pinned staging buffer reused without a copy", symptom="silent", phase="data", cause="repeated_batch", op=None,
             module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=1, knowable_at=1,
             static_visible=dict(source="yes: buffer appended without clone", objects="yes: all batches share one data_ptr"),
             quality_limit=0.8, margin=2.0, fixes_that_work=["clone"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"clone"}


class Prefetcher:
    def __init__(s, source, depth, copies):
        s.x, s.y = torch.empty(16, 12), torch.empty(16, dtype=torch.long)
        s.source, s.depth, s.copies, s.queue = iter(source), depth, copies, []

    def fill(s):
        for _ in range(s.depth):
            b = next(s.source)
            s.x.copy_(b["x"])
            s.y.copy_(b["y"])
            s.queue.append({"x": s.x.clone(), "y": s.y.clone()} if s.copies else {"x": s.x, "y": s.y})  # <-- origin
        return s.queue


def signal(case, i, r):
    return i > 0 and torch.equal(case.batches[i]["x"], case.batches[i - 1]["x"]) and torch.equal(case.batches[i]["y"], case.batches[i - 1]["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    queue = Prefetcher(S.classes(80), 80, bool(fix)).fill()
    return SCase(m, S.ce, queue, torch.optim.Adam(m.parameters(), lr=1e-2), quality=lambda c: S.heldout_ce(m, test))
