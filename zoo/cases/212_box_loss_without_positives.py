"""Detector: the box regression term averages over positive anchors; a batch of background images has none, mean of nothing is
NaN. The classification gradients are finite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="212_box_loss_without_positives", source="https://github.com/zhang-tao-whu/e2ec/issues/7",
             symptom="nan_loss", phase="forward", cause="empty_reduction", op="smooth_l1_loss", op_also=["mean"], module="criterion", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=None, fixes_that_work=["guard", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"guard"}


class DetectionLoss(nn.Module):
    guard = False

    def forward(s, cls, box, obj, tgt):
        pos = obj > 0.5
        focal = F.binary_cross_entropy_with_logits(cls, obj)
        if s.guard and not pos.any():
            return focal + 0 * box.sum()
        return focal + F.smooth_l1_loss(box[pos], tgt[pos])  # <-- origin


class Detector(nn.Module):
    def __init__(s):
        super().__init__()
        s.backbone, s.cls, s.box, s.criterion = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 1, 1), nn.Conv2d(8, 4, 1), DetectionLoss()

    def forward(s, x, obj, tgt):
        h = F.relu(s.backbone(x))
        return s.criterion(s.cls(h)[:, 0], s.box(h).permute(0, 2, 3, 1), obj, tgt)


def loss_fn(m, b):
    return m(b["x"], b["obj"], b["tgt"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Detector(), torch.Generator().manual_seed(9)
    m.criterion.guard = fix == "guard"
    data = [dict(x=torch.randn(3, 3, 6, 6, generator=g), obj=(torch.rand(3, 6, 6, generator=g) > 0.9).float(), tgt=torch.rand(3, 6, 6, 4, generator=g)) for _ in range(10)]
    data[6]["obj"].zero_()
    return Case(m, loss_fn, data, B.adam(m))
