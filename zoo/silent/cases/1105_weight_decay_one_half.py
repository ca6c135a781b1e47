"""weight_decay=5e-1 where 5e-4 was meant: with lr 0.1 every step takes 5 % off every weight, the gains of the norm included; the network shrinks to zero."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1105_weight_decay_one_half", source="constructed (typing error in a config)", symptom="silent", phase="optimizer",
             cause="weight_decay_dominates", op=None, module="", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             tensors=["fc1.weight", "bn.weight", "fc2.weight", "head.weight"], static_visible=dict(source="no: a constant", objects="yes: lr * weight_decay = 0.05 per step, also on norm gains"),
             quality_limit=0.75, margin=1.8, fixes_that_work=["5e-4"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"5e-4"}


def signal(case, i, r):
    """lr * decay takes more than 1 % per step, in a group that holds the gains of the norm"""
    return any(g["lr"] * g["weight_decay"] > 0.01 and any(p is case.model.bn.weight for p in g["params"]) for g in case.optimizer.param_groups)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(norm=True), S.cat(S.classes(16, seed=99))
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4 if fix else 5e-1)  # <-- origin
    return SCase(m, S.ce, S.classes(80), opt, quality=lambda c: S.heldout_ce(m, test))
