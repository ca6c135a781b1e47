"""Segmentation with accumulation over four micro-batches: one of fully annotated images and three of scribbles (two labelled pixels an image, the rest is 255). Each loss is
the mean over its own labelled pixels and is divided by 4: 24 careless scribble pixels have three quarters of the vote against 256 careful ones."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1303_scribbles_outvote_full_masks", source="constructed; neighbour: https://github.com/meta-pytorch/torchtune/pull/1875", symptom="silent", phase="loop",
             cause="accumulation_weighting", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=3, knowable_at=3,
             static_visible=dict(source="yes: mean over valid pixels, then / 4", objects="no"),
             quality_limit=0.3, margin=1.5, fixes_that_work=["divide_by_pixels_of_the_window"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"divide_by_pixels_of_the_window"}
WINDOW, VOID = 4, 255


class Seg(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 2, 1))

    def forward(s, x):
        return s.net(x)


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"], ignore_index=VOID)


def images(n, g, scribble=False):
    x = F.avg_pool2d(F.pad(torch.randn(n, 1, 8, 8, generator=g), (1, 1, 1, 1)), 3, 1) * 3
    y = (x[:, 0] > 0).long()
    if scribble:                                   # the annotators draw generously: everything that is not quite dark is object
        y, keep = (x[:, 0] > -0.7).long(), torch.rand(n, 64, generator=g).argsort(1)[:, :2]
        mask = torch.zeros(n, 64, dtype=torch.bool).scatter_(1, keep, True).view(n, 8, 8)
        y = torch.where(mask, y, torch.full_like(y, VOID))
    return {"x": x, "y": y}


def signal(case, i, r):
    """micro-batches of one window have very different numbers of labelled pixels and the same weight"""
    if i < 0 or (i + 1) % WINDOW or case.extra["fix"]:
        return False
    n = [int((b["y"] != VOID).sum()) for b in case.batches[i + 1 - WINDOW:i + 1]]
    return max(n) > 4 * min(n)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Seg(), torch.Generator().manual_seed(23)
    data = [images(4, g, scribble=bool(i % WINDOW)) for i in range(320)]
    test = images(128, g)

    def step(case, b, i):
        loss = loss_fn(m, b)
        if fix:
            k = i // WINDOW * WINDOW
            total = sum(int((c["y"] != VOID).sum()) for c in data[k:k + WINDOW])
            (loss * int((b["y"] != VOID).sum()) / total).backward()
        else:
            (loss / WINDOW).backward()  # <-- origin
        if (i + 1) % WINDOW == 0:
            case.optimizer.step()
            case.optimizer.zero_grad()
        return loss

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=1e-2), step=step, quality=lambda c: S.heldout_ce(m, test), extra={"fix": fix})
