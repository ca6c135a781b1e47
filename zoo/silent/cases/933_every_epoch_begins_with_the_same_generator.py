"""The data set keeps a torch.Generator; each epoch works on a fresh copy of the data set (as forked workers do), so that the same noise is drawn in every epoch."""
import copy, torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="933_every_epoch_begins_with_the_same_generator", source="constructed", symptom="silent", phase="data", cause="worker_same_seed", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=8, knowable_at=8, static_visible=dict(source="no", objects="yes: the data set carries a generator"),
             quality_limit=1.0, margin=1.3, fixes_that_work=["one_generator"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"one_generator"}
PER_EPOCH = 8


class Scans(torch.utils.data.Dataset):
    def __init__(s):
        b = S.cat(S.classes(PER_EPOCH, noise=0.5))
        s.x, s.y, s.random = b["x"], b["y"], torch.Generator().manual_seed(3)

    def __len__(s):
        return len(s.y)

    def __getitem__(s, k):
        return s.x[k] + 1.3 * torch.randn(12, generator=s.random), s.y[k]


def batches(ds, epochs, fix):
    for _ in range(epochs):
        source = ds if fix else copy.deepcopy(ds)  # <-- origin
        for j in range(PER_EPOCH):
            rows = [source[k] for k in range(16 * j, 16 * j + 16)]
            yield {"x": torch.stack([x for x, _ in rows]), "y": torch.stack([y for _, y in rows])}


def signal(case, i, r):
    return i >= PER_EPOCH and torch.equal(case.batches[i]["x"], case.batches[i - PER_EPOCH]["x"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test, ds = S.Classifier(h=64), S.cat(S.classes(24, seed=99, noise=(0.5 ** 2 + 1.3 ** 2) ** 0.5)), Scans()
    return SCase(m, S.ce, list(batches(ds, 20, fix)), torch.optim.Adam(m.parameters(), lr=5e-3), extra={"dataset": ds}, quality=lambda c: S.heldout_ce(m, test))
