"""The optimizer was changed from AdamW(lr=1e-3, weight_decay=0.2) to SGD(lr=0.1, momentum=0.9) and the decay 0.2 was kept: per step the weights lose
far more than the gradient gives back and the network shrinks to a constant."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1205_sgd_with_adamw_decay", source="constructed", symptom="silent", phase="optimizer",
             cause="weight_decay_dominates", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=10,
             static_visible=dict(source="hint: weight_decay=0.2 with SGD", objects="hint: lr * weight_decay / (1 - momentum) = 0.2 per step"),
             quality_limit=0.8, margin=1.5, fixes_that_work=["small_decay", "no_decay"], fixes_that_do_not=["clip", "longer"])
FIXES = {"small_decay", "no_decay"}


def signal(case, i, r):
    """the weight norm has fallen below a third of its initial value"""
    n = sum(float(p.detach().pow(2).sum()) for p in case.model.parameters()) ** 0.5
    case.extra.setdefault("n0", n)
    return n < case.extra["n0"] / 3


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(norm=True), S.cat(S.classes(16, seed=99))
    wd = {"small_decay": 5e-4, "no_decay": 0.0}.get(fix, 0.2)
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=wd)  # <-- origin
    return SCase(m, S.ce, S.classes(80), opt, quality=lambda c: S.heldout_ce(m, test))
