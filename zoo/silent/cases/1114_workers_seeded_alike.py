"""worker_init_fn seeds every worker with the same number, and workers are started anew each epoch: all workers draw the same noise, and every sample gets the same
'random' noise in every epoch. There is no augmentation at all."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1114_workers_seeded_alike", source="constructed from the pattern worker_init_fn = lambda w: seed(0)", symptom="silent", phase="data",
             cause="worker_same_seed", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=1, knowable_at=1,
             static_visible=dict(source="yes: the seed ignores worker id and epoch", objects="no: the augmentation of two batches is the same"),
             quality_limit=0.85, margin=1.4, fixes_that_work=["seed_per_worker_and_epoch"], fixes_that_do_not=["lr_up", "longer"])
FIXES = {"seed_per_worker_and_epoch"}
WORKERS, EPOCHS = 4, 20


class Noisy(torch.utils.data.Dataset):
    def __init__(s, pool):
        s.pool, s.gen = pool, None

    def seed(s, n):
        s.gen = torch.Generator().manual_seed(n)

    def __len__(s):
        return len(s.pool["y"])

    def __getitem__(s, k):
        x = s.pool["x"][k]
        return x + 1.5 * torch.randn(x.shape, generator=s.gen), s.pool["y"][k]


def epoch(data, e, fixed):
    """what a DataLoader with four workers and one batch per worker delivers"""
    out, n = [], len(data) // WORKERS
    for w in range(WORKERS):
        data.seed(1 + w + 1000 * e if fixed else 1)  # <-- origin
        rows = [data[k] for k in range(w * n, (w + 1) * n)]
        out.append({"x": torch.stack([r[0] for r in rows]), "y": torch.stack([r[1] for r in rows])})
    return out


def signal(case, i, r):
    """the noise that was added to this batch is the noise of the batch before"""
    if i < 1:
        return False
    base, n = case.extra["dataset"].pool["x"], len(case.batches[0]["y"])
    a, b = (case.batches[j]["x"] - base[j % WORKERS * n:][:n] for j in (i, i - 1))
    return torch.allclose(a, b, atol=1e-5)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = S.Classifier(h=64), Noisy(S.cat(S.classes(4, noise=0.5)))
    test = S.cat(S.classes(16, seed=99, noise=1.6))
    return SCase(m, S.ce, [b for e in range(EPOCHS) for b in epoch(data, e, fix)], torch.optim.Adam(m.parameters(), lr=5e-3),
                 extra={"dataset": data}, quality=lambda c: S.heldout_ce(m, test))
