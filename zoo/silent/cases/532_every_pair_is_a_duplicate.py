"""Duplicate detection from a CSV: bool(row['duplicate']) of the strings 'False' and 'True' is True for both. All pairs are pulled together; the contrastive loss goes to
zero and every question gets the same vector."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="532_every_pair_is_a_duplicate", source="constructed: bool('False')", symptom="silent", phase="data", cause="representation_collapse", op=None, module=None, bad_rows=None, line_marker="# <-- origin",
             first_bad_step=0, knowable_at=40, static_visible=dict(source="yes: bool() of a string column", objects="yes: the label is constant over all batches"),
             quality_limit=0.2, margin=1.5, fixes_that_work=["compare_string"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"compare_string"}
MARGIN = 2.0


def csv(n, seed, bs=24):
    a, b, g = S.classes(n, bs, seed=seed, noise=0.6), S.classes(n, bs, seed=seed + 50, noise=0.6), torch.Generator().manual_seed(seed)
    for p, q in zip(a, b):
        same = torch.rand(bs, generator=g) < 0.5        # half the partners are drawn from the same topic
        perm = torch.stack([(q["y"] == k).float().multinomial(1, generator=g)[0] if bool((q["y"] == k).any()) else torch.tensor(0) for k in p["y"]])
        pick = torch.where(same, perm, torch.arange(bs))
        yield p["x"], q["x"][pick], [str(bool(v)) for v in p["y"] == q["y"][pick]]


def loss_fn(m, b):
    d = F.pairwise_distance(m(b["a"]), m(b["b"]))
    return torch.where(b["dup"], d ** 2, F.relu(MARGIN - d) ** 2).mean()


def signal(case, i, r):
    """loss next to nothing and the spread of the embeddings a small part of what it was"""
    with torch.no_grad():
        s = float(case.model(case.batches[0]["a"]).std(0).mean())
    case.extra.setdefault("s0", s)
    return i >= 40 and s < 0.2 * case.extra["s0"]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
    parse = (lambda s: s == "True") if fix else bool
    batches = [{"a": a, "b": b, "dup": torch.tensor([parse(s) for s in col])} for a, b, col in csv(100, 5)]  # <-- origin
    A, Bx, col = zip(*csv(10, 400))
    A, Bx, truth = torch.cat(A), torch.cat(Bx), torch.tensor([s == "True" for c in col for s in c])

    def quality(c):                                # error of 'duplicate if nearer than half the margin'
        return S.in_eval(m, lambda: ((F.pairwise_distance(m(A), m(Bx)) < MARGIN / 2) != truth).float().mean())

    return SCase(m, loss_fn, batches, torch.optim.Adam(m.parameters(), lr=5e-3), quality=quality)
