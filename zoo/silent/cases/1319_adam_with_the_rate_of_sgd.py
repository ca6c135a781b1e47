"""A digit classifier on pixels from 0 to 1; SGD(lr=0.2) was replaced by Adam and the rate was kept. All pixels are positive, so the first steps of Adam move each unit's sum by the rate times their
number: the units of the second layer are soon off for every picture, and the loss stays at log 10."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1319_adam_with_the_rate_of_sgd", source="constructed; the usual question 'loss stuck at 2.303'", symptom="silent", phase="forward",
             cause="dead_relu", op="relu", module="net.3", module_also=["net.1"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=11,
             static_visible=dict(source="hint: Adam with lr=0.2", objects="hint: lr of the Adam group"),
             quality_limit=0.3, margin=2.0, fixes_that_work=["adam_rate", "sgd"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"adam_rate", "sgd"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 10))

    def forward(s, x):
        return s.net(x.flatten(1))


def digits(n, bs, g):
    proto = F.avg_pool2d((torch.rand(10, 1, 10, 10, generator=torch.Generator().manual_seed(7)) > 0.5).float(), 3, 1)
    out = []
    for _ in range(n):
        y = torch.randint(0, 10, (bs,), generator=g)
        out.append({"x": (proto[y] + 0.15 * torch.randn(bs, 1, 8, 8, generator=g)).clamp(0, 1), "y": y})
    return out


def signal(case, i, r):
    """a ReLU layer gives 0 for every row of the last batches"""
    if i < 0:
        return False
    with torch.no_grad():
        h = torch.cat([b["x"] for b in case.batches[max(0, i - 3):i + 1]]).flatten(1)
        for l in case.model.net:
            h = l(h)
            if isinstance(l, nn.ReLU) and not bool((h > 0).any()):
                return True
    return False


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(39)
    data, test = digits(250, 32, g), S.cat(digits(8, 64, g))
    if fix == "sgd":
        opt = torch.optim.SGD(m.parameters(), lr=0.2)
    else:
        opt = torch.optim.Adam(m.parameters(), lr=3e-3 if fix else 0.2)  # <-- origin
    return SCase(m, S.ce, data, opt, quality=lambda c: S.heldout_err(m, test))
