"""Fine-tuning with layer-wise rates: adjust_lr() multiplies by group.get('lr_scale', 0.0). The head group carries no 'lr_scale', so the only
layer that is new never moves; the trunk runs at its proper rate."""
import math, torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="506_new_head_has_no_lr_scale", source="constructed after the lr_scale idiom of MAE / BEiT fine-tuning", symptom="silent", phase="loop",
             cause="wrong_param_group_lr", op=None, module="head", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             tensors=["head.weight", "head.bias"], named=dict(kind="never_moves", names=["head.weight", "head.bias"]),
             static_visible=dict(source="no: the default of .get is a hint", objects="no: rates are set inside the loop; from step 0 on yes"),
             quality_limit=0.8, margin=1.5, fixes_that_work=["scale_one"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"scale_one"}
N, WARM = 80, 5


def signal(case, i, r):
    return bool(r) and r.stepped and min(r.lrs) == 0.0 < max(r.lrs)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    nn.init.trunc_normal_(m.head.weight, std=2e-5)
    nn.init.zeros_(m.head.bias)
    opt = torch.optim.AdamW([{"params": m.fc1.parameters(), "lr_scale": 0.5}, {"params": m.fc2.parameters(), "lr_scale": 0.75}, {"params": m.head.parameters()}], lr=1e-2, weight_decay=0.01)
    default = 1.0 if fix else 0.0

    def adjust(i):
        base = 1e-2 * ((i + 1) / WARM if i < WARM else 0.5 * (1 + math.cos(math.pi * (i - WARM) / (N - WARM))))
        for g in opt.param_groups:
            g["lr"] = base * g.get("lr_scale", default)  # <-- origin

    def step(case, b, i):
        adjust(i)
        loss = S.ce(m, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return SCase(m, S.ce, S.classes(N), opt, step=step, quality=lambda c: S.heldout_ce(m, test))
