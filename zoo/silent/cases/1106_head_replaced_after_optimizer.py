"""The optimizer is built, then the head is replaced for the new number of classes: the new head gets gradients but the optimizer still holds the old one."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1106_head_replaced_after_optimizer", source="constructed from the fine-tuning pattern model.fc = nn.Linear(...) after the optimizer", symptom="silent", phase="optimizer",
             cause="optimizer_missing_params", op=None, module="head", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             tensors=["head.weight", "head.bias"], static_visible=dict(source="yes: module assigned after the optimizer was built", objects="yes: trainable parameters in no group"),
             named=dict(kind="never_moves", names=["head.weight", "head.bias"]),
             quality_limit=0.75, margin=1.4, fixes_that_work=["optimizer_last"], fixes_that_do_not=["clip"])
FIXES = {"optimizer_last"}


def signal(case, i, r):
    own = {id(p) for g in case.optimizer.param_groups for p in g["params"]}
    return any(p.requires_grad and id(p) not in own for p in case.model.parameters())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = S.Classifier(d=20, h=24, k=4)
    first = torch.optim.Adam(m.parameters(), lr=1e-2)       # "pretraining" on four classes
    for b in S.classes(40, d=20, k=4):
        first.zero_grad()
        S.ce(m, b).backward()
        first.step()
    m.zero_grad()

    def optimizer():                                         # small rate for the pretrained part, a large one for the head
        return torch.optim.Adam([{"params": [*m.fc1.parameters(), *m.fc2.parameters()], "lr": 3e-3}, {"params": m.head.parameters()}], lr=3e-2)

    opt = optimizer()
    m.head = nn.Linear(24, 8)  # <-- origin
    if fix:
        opt = optimizer()
    test = S.cat(S.classes(16, d=20, k=8, seed=99, sep=2.2))
    return SCase(m, S.ce, S.classes(80, d=20, k=8, sep=2.2), opt, quality=lambda c: S.heldout_ce(m, test))
