"""Detector: the box loss is the mean over positive anchors; one batch of background images has none, mean() of an empty
selection is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1316_no_positive_boxes", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="loss", cause="empty_reduction", op="mean", module=None, line_marker="# <-- origin",
             first_bad_step=7, bad_rows=None, fixes_that_work=["guard", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"guard"}


class Detector(nn.Module):
    def __init__(s):
        super().__init__()
        s.backbone, s.cls, s.box = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 1, 1), nn.Conv2d(16, 4, 1)

    def forward(s, x):
        f = F.relu(s.backbone(x))
        return s.cls(f).flatten(1), s.box(f).flatten(2).transpose(1, 2)


def make(seed=0, fix=None):
    m, g = Detector(), torch.Generator().manual_seed(3)

    def loss_fn(m, b):
        score, box = m(b["img"])
        pos = b["label"] > 0
        conf = F.binary_cross_entropy_with_logits(score, b["label"])
        dist = F.smooth_l1_loss(box[pos], b["box"][pos], reduction="none")
        if fix == "guard":
            return conf + dist.sum() / max(dist.numel(), 1)
        return conf + dist.mean()  # <-- origin

    data = [dict(img=torch.randn(4, 3, 8, 8, generator=g), label=(torch.rand(4, 16, generator=g) > 0.8).float(), box=torch.randn(4, 16, 4, generator=g)) for _ in range(11)]
    data[7]["label"][:] = 0
    return Case(m, loss_fn, data, B.adam(m))
