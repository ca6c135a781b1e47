"""AdamW is built with lr=0.0 because the warm-up sets it, and the warm-up writes optimizer.param_groups[0]['lr'] only. The second group (the encoder; it was split off for
another weight decay) runs with 0 from the first step to the last."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1304_warmup_sets_the_first_group_only", source="constructed from the pattern optimizer.param_groups[0]['lr'] = lr", symptom="silent", phase="optimizer",
             cause="wrong_param_group_lr", op=None, module="encoder", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=1,
             static_visible=dict(source="yes: index 0 with two groups", objects="no: after the first steps yes (rates of the groups are lr and 0)"),
             named=dict(kind="never_moves", names=["encoder.0.weight", "encoder.2.weight"]),
             quality_limit=0.25, margin=2.0, fixes_that_work=["all_groups"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"all_groups"}
PEAK, WARM = 1e-2, 10


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        s.head = nn.Linear(8, 2)

    def forward(s, x):
        return s.head(s.encoder(x))


def rings(n, bs, g):
    out = []
    for _ in range(n):
        x = torch.randn(bs, 12, generator=g)
        out.append({"x": x, "y": (x[:, 0] * x[:, 1] > 0).long()})
    return out


def signal(case, i, r):
    """from the second step on one group has a rate and the other has none"""
    return i >= 1 and max(r.lrs) > 0 and min(r.lrs) == 0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(24)
    data, test = rings(400, 32, g), S.cat(rings(32, 32, g))
    opt = torch.optim.AdamW([{"params": m.head.parameters(), "weight_decay": 0.0}, {"params": m.encoder.parameters(), "weight_decay": 0.01}], lr=0.0)

    def set_lr(case, i):
        lr = PEAK * min(1.0, (i + 1) / WARM)
        if fix:
            for group in opt.param_groups:
                group["lr"] = lr
        else:
            opt.param_groups[0]["lr"] = lr  # <-- origin

    return SCase(m, S.ce, data, opt, before_step=set_lr, quality=lambda c: S.heldout_err(m, test))
