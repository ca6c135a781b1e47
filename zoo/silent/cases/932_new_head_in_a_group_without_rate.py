"""The trunk's group gets the rate of the configuration, the head's `conf.get("head_lr", 0.0)`: the key is called lr_head. A random head that never learns."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="932_new_head_in_a_group_without_rate", source="constructed", symptom="silent", phase="optimizer", cause="wrong_param_group_lr", op=None, module="head", bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=-1, tensors=["head.weight", "head.bias"], static_visible=dict(source="no: a default of 0.0 for a missing key", objects="yes: a group with lr 0"),
             named=dict(kind="lr_zero", names=["head.weight", "head.bias"]), quality_limit=0.55, margin=1.1, fixes_that_work=["right_key"], fixes_that_do_not=["lr_up", "clip"])
FIXES = {"right_key"}


def signal(case, i, r):
    return any(g["lr"] == 0 for g in case.optimizer.param_groups)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test, conf = S.Classifier(), S.cat(S.classes(16, seed=99)), {"lr": 2e-3, "lr_head": 2e-2}
    trunk = [*m.fc1.parameters(), *m.fc2.parameters()]
    rate = conf.get("lr_head" if fix else "head_lr", 0.0)  # <-- origin
    opt = torch.optim.AdamW([{"params": trunk, "lr": conf["lr"]}, {"params": list(m.head.parameters()), "lr": rate}])
    return SCase(m, S.ce, S.classes(40), opt, quality=lambda c: S.heldout_ce(m, test))
