"""Multi-label tagging: the head ends in nn.Sigmoid and the criterion is BCEWithLogitsLoss. No label can be scored below one half or above 0.73; with rare
labels the best answer is 'none' for all."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="521_labels_after_two_sigmoids", source="https://github.com/cvg/glue-factory/issues/89, https://github.com/yudi-mars/daisyRec/pull/15", symptom="silent", phase="loss", cause="softmax_twice",
             op="binary_cross_entropy_with_logits", module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: Sigmoid at the end and BCEWithLogitsLoss", objects="yes: last module is nn.Sigmoid"),
             quality_limit=0.5, margin=1.5, fixes_that_work=["logits", "bce_loss"], fixes_that_do_not=["lr_down", "clip"])
FIXES = {"logits", "bce_loss"}


def tags(n, seed, bs=32, L=8):
    w = torch.randn(10, L, generator=torch.Generator().manual_seed(6))
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        x = torch.randn(bs, 10, generator=g)
        out.append({"x": x, "y": (x @ w > 4.2).float()})
    return out


def signal(case, i, r):
    """everything that enters a logit loss lies in [0, 1]"""
    if i < 0 or not isinstance(case.extra["criterion"], nn.BCEWithLogitsLoss):
        return False
    with torch.no_grad():
        o = case.model(case.batches[i]["x"])
    return bool(((o >= 0) & (o <= 1)).all())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 8), nn.Identity() if fix == "logits" else nn.Sigmoid())
    criterion = nn.BCELoss() if fix == "bce_loss" else nn.BCEWithLogitsLoss()
    test = S.cat(tags(16, 88))

    def loss_fn(m, b):
        return criterion(m(b["x"]), b["y"])  # <-- origin

    def quality(c):                                # 1 - F1 at one half
        with torch.no_grad():
            p = m(test["x"])
        p = p > (0.0 if fix == "logits" else 0.5)
        t = test["y"] > 0.5
        return 1 - float(2 * (p & t).sum() / ((p.sum() + t.sum()).clamp_min(1)))

    return SCase(m, loss_fn, tags(150, 5), torch.optim.Adam(m.parameters(), lr=1e-2), quality=quality, extra={"criterion": criterion})
