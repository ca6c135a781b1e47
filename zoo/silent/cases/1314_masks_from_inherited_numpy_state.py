"""Masked autoencoding: the data set draws each row's mask with np.random in __getitem__. Workers are forked anew in every epoch and all inherit the same numpy state: four workers and all
epochs use the same four masks. The network learns to fill these holes and no others."""
import numpy as np, torch, torch.nn as nn
from protocol_silent import SCase
TRUTH = dict(id="1314_masks_from_inherited_numpy_state", source="constructed from the pattern np.random in __getitem__ with forked workers", symptom="silent", phase="data",
             cause="worker_same_seed", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=1, knowable_at=1,
             static_visible=dict(source="yes: np.random in __getitem__ with workers and no worker_init_fn", objects="no: the masks of two batches are the same"),
             quality_limit=0.4, margin=1.4, fixes_that_work=["seed_per_worker_and_epoch"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"seed_per_worker_and_epoch"}
WORKERS, EPOCHS, BS, D = 4, 100, 4, 16


class MaskedAE(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(nn.Linear(2 * D, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, D))

    def forward(s, x, mask):
        return s.net(torch.cat([x.masked_fill(mask, 0.0), mask.float()], -1))


def loss_fn(m, b):
    e = (m(b["x"], b["mask"]) - b["x"]) ** 2
    return e[b["mask"]].mean()


def rows(n, g):
    mix = torch.randn(4, D, generator=torch.Generator().manual_seed(8)) / 2
    return torch.randn(n, 4, generator=g) @ mix + 0.05 * torch.randn(n, D, generator=g)


def draw(rng, n):
    return torch.from_numpy(rng.rand(n, D)).argsort(1) < D // 2


def signal(case, i, r):
    """the masks of this batch are those of the one before"""
    return i > 0 and torch.equal(case.batches[i]["mask"], case.batches[i - 1]["mask"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = MaskedAE(), torch.Generator().manual_seed(34)
    pool, test = rows(256, g), rows(1024, g)
    tmask = draw(np.random.RandomState(999), 1024)
    parent, data = np.random.RandomState(seed), []
    for e in range(EPOCHS):
        order = torch.randperm(len(pool), generator=g).split(BS)
        rngs = []
        for w in range(WORKERS):                   # fork: each worker has a copy of the parent's state
            rng = np.random.RandomState()
            rng.set_state(parent.get_state())  # <-- origin
            if fix:
                rng.seed(1000 * (e + 1) + w)
            rngs.append(rng)
        for k, idx in enumerate(order[:WORKERS]):  # a worker makes one batch of the epoch
            data.append({"x": pool[idx], "mask": draw(rngs[k % WORKERS], len(idx))})

    def quality(c):                                # error at hidden places relative to their variance, fresh masks
        with torch.no_grad():
            return float(loss_fn(m, {"x": test, "mask": tmask}) / test.var())

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=3e-3), quality=quality)
