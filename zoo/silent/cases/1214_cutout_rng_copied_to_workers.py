"""Random cutout in the data set, four workers. worker_init seeds numpy with a constant instead of seed + worker_id + epoch: in every epoch all four workers
cut the same features out of their n-th batch, the augmentation shows the network the same few variants for ever."""
import numpy as np, torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1214_cutout_rng_copied_to_workers", source="constructed", symptom="silent",
             phase="data", cause="worker_same_seed", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=1, knowable_at=1,
             static_visible=dict(source="yes: constant seed in worker_init", objects="no"),
             quality_limit=0.9, margin=1.2, fixes_that_work=["seed_per_worker"], fixes_that_do_not=["clip", "longer"])
FIXES = {"seed_per_worker"}
WORKERS, EPOCHS = 4, 20


def signal(case, i, r):
    """neighbouring batches (different workers) have the same pattern of cut-out features"""
    return i > 0 and torch.equal(case.batches[i]["x"] == 0, case.batches[i - 1]["x"] == 0)


class Worker:
    def __init__(s, wid, epoch, fix):
        seed = 1234 + wid + WORKERS * epoch if fix else 1234  # <-- origin
        s.rng = np.random.RandomState(seed)

    def fetch(s, b):
        keep = torch.from_numpy(s.rng.rand(*b["x"].shape) > 0.4)
        return {"x": b["x"] * keep, "y": b["y"]}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(h=64), S.cat(S.classes(24, seed=99))
    train, data = S.classes(4), []
    for epoch in range(EPOCHS):
        workers = [Worker(w, epoch, fix) for w in range(WORKERS)]
        data += [workers[j % WORKERS].fetch(b) for j, b in enumerate(train)]
    return SCase(m, S.ce, data, torch.optim.Adam(m.parameters(), lr=1e-2), quality=lambda c: S.heldout_ce(m, test))
