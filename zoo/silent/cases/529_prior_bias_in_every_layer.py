"""The detector recipe starts the classification bias at -log(99) so that everything is background at first. Here the init function reaches every convolution:
all ReLUs behind it are off for every image."""
import math, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="529_prior_bias_in_every_layer", source="constructed after the RetinaNet prior_prob init", symptom="silent", phase="forward", cause="dead_relu", op="relu", module="body.1", module_also=["body.3"], bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=-1, tensors=["body.0.weight", "body.2.weight"],
             static_visible=dict(source="yes: the prior bias is set for every Conv2d", objects="yes: bias -4.6 with weights of 0.01: one forward shows only zeros"),
             named=dict(kind="zero_grad", names=["body.0.weight", "body.2.weight"]),
             quality_limit=0.5, margin=1.5, fixes_that_work=["head_only"], fixes_that_do_not=["lr_down", "clip", "longer"])
FIXES = {"head_only"}


class Detector(nn.Module):
    def __init__(s, head_only):
        super().__init__()
        s.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        s.cls = nn.Conv2d(8, 3, 1)
        for x in s.modules():
            if isinstance(x, nn.Conv2d) and (x is s.cls or not head_only):
                nn.init.normal_(x.weight, std=0.01)
                nn.init.constant_(x.bias, -math.log(99))  # <-- origin

    def forward(s, img):
        return s.cls(s.body(img)).amax((2, 3))


def images(n, seed, bs=16):
    g = torch.Generator().manual_seed(seed)
    k = torch.zeros(3, 8, 8)
    k[0, 2, 1:7], k[1, 1:7, 4] = 2, 2
    k[2, range(1, 7), range(1, 7)] = 2
    out = []
    for _ in range(n):
        y = torch.randint(0, 3, (bs,), generator=g)
        out.append({"x": (k[y] + 0.3 * torch.randn(bs, 8, 8, generator=g))[:, None], "y": y})
    return out


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def signal(case, i, r):
    with torch.no_grad():
        return float(case.model.body[:2](case.batches[0]["x"]).abs().max()) == 0.0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Detector(bool(fix)), S.cat(images(8, 88))
    return SCase(m, loss_fn, images(100, 5), torch.optim.Adam(m.parameters(), lr=1e-2), quality=lambda c: S.heldout_err(m, test))
