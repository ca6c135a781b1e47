"""Two parameter groups; the backbone's rate is lr * cfg.get('backbone_lr_mult', 0) and the config does not have that key: the backbone stays as it was drawn."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1104_backbone_lr_defaults_to_zero", source="constructed from the pattern of separate backbone / head rates in detection repositories", symptom="silent", phase="optimizer",
             cause="wrong_param_group_lr", op=None, module="fc1", module_also=["fc2"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             tensors=["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"], static_visible=dict(source="yes: default 0 of the multiplier", objects="yes: a group with lr 0 and no schedule"),
             named=dict(kind="never_moves", names=["fc1.weight", "fc2.weight"]),
             quality_limit=0.75, margin=1.5, fixes_that_work=["multiplier"], fixes_that_do_not=["lr_up", "clip"])
FIXES = {"multiplier"}


def signal(case, i, r):
    return any(g["lr"] == 0 for g in case.optimizer.param_groups) and case.scheduler is None


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(d=20, h=16, k=8), S.cat(S.classes(16, d=20, k=8, seed=99, sep=2.2))
    cfg = dict(lr=1e-2, epochs=1)
    if fix:
        cfg["backbone_lr_mult"] = 0.5
    backbone = [p for n, p in m.named_parameters() if not n.startswith("head")]
    opt = torch.optim.AdamW([{"params": backbone, "lr": cfg["lr"] * cfg.get("backbone_lr_mult", 0)},  # <-- origin
                             {"params": m.head.parameters()}], lr=cfg["lr"])
    return SCase(m, S.ce, S.classes(80, d=20, k=8, sep=2.2), opt, quality=lambda c: S.heldout_ce(m, test))
