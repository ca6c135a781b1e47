"""The dataset owns its numpy Generator; it is copied with the dataset into each of four workers, anew in every epoch. Thirty-two noise patterns are all
the 'random' augmentation there is: by epoch 20 the net knows every augmented sample by heart."""
import copy, numpy as np, torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="511_generator_travels_into_every_worker", source="https://github.com/xingyizhou/CenterNet/issues/233, https://github.com/open-mmlab/OpenPCDet/issues/886", symptom="silent",
             phase="data", cause="worker_same_seed", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=1, knowable_at=8,
             static_visible=dict(source="yes: rng on the dataset, no worker_init_fn", objects="yes: dataset carries a Generator with a fixed state"),
             quality_limit=1.0, margin=1.4, fixes_that_work=["seed_by_worker_and_epoch"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"seed_by_worker_and_epoch"}
WORKERS, PER_EPOCH = 4, 8


class Spectra(torch.utils.data.Dataset):
    """128 clean spectra; each read adds fresh sensor noise"""

    def __init__(s):
        b = S.cat(S.classes(8, noise=0.5))
        s.x, s.y, s.rng = b["x"].numpy(), b["y"], np.random.default_rng(7)

    def __len__(s):
        return len(s.y)

    def __getitem__(s, k):
        return torch.from_numpy(s.x[k] + 1.3 * s.rng.standard_normal(12).astype("float32")), s.y[k]  # <-- origin


def loader(ds, epochs, reseed):
    """what a DataLoader with four forked workers delivers: batch j is made by worker j % 4 from its own copy of the dataset"""
    for e in range(epochs):
        copies = [copy.deepcopy(ds) for _ in range(WORKERS)]
        if reseed:
            for w, c in enumerate(copies):
                c.rng = np.random.default_rng([7, e, w])
        for j in range(PER_EPOCH):
            items = [copies[j % WORKERS][k] for k in range(j * 16, j * 16 + 16)]
            yield {"x": torch.stack([x for x, _ in items]), "y": torch.stack([y for _, y in items])}


def signal(case, i, r):
    """the second epoch brings the very same augmented batch"""
    return i >= PER_EPOCH and torch.equal(case.batches[i]["x"], case.batches[i - PER_EPOCH]["x"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(h=64), S.cat(S.classes(24, seed=99, noise=(0.5 ** 2 + 1.3 ** 2) ** 0.5))
    ds = Spectra()
    return SCase(m, S.ce, list(loader(ds, 20, bool(fix))), torch.optim.Adam(m.parameters(), lr=5e-3), extra={"dataset": ds}, quality=lambda c: S.heldout_ce(m, test))
