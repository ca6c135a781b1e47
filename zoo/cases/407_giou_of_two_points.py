"""Detection: two annotations of one image are clicks, not boxes, and the prediction collapsed onto them; the union has no area."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="407_giou_of_two_points", source="common report: IoU of degenerate boxes is 0/0",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[2], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}
FIX = [None]


def area(b):
    return (b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1])


def pairwise_iou(a, b):
    lt, rb = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    union = area(a) + area(b) - inter
    if FIX[0] == "eps":
        union = union + 1e-6
    if FIX[0] == "clamp":
        union = union.clamp(min=1e-6)
    return inter / union  # <-- origin


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.box = nn.Linear(24, 8)
        self.cls = nn.Linear(24, 2)

    def forward(self, img):
        h = self.backbone(img)
        c, s = self.box(h).view(-1, 2, 4).split(2, -1)
        c, s = c.sigmoid(), F.relu(s)
        return torch.cat([c - s / 2, c + s / 2], -1), self.cls(h)


def loss_fn(m, batch):
    boxes, scores = m(batch["image"])
    t = batch["target"]
    iou = pairwise_iou(boxes, t["boxes"])
    return (1 - iou).mean() + F.l1_loss(boxes, t["boxes"]) + F.cross_entropy(scores, t["labels"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    FIX[0] = fix
    m, g, data = Detector(), torch.Generator().manual_seed(8), []
    with torch.no_grad():
        m.box.bias[[2, 3]] = 0.3
        m.box.bias[[6, 7]] = 0.3
        m.box.weight.mul_(0.2)
    for _ in range(8):
        lo = torch.rand(4, 2, 2, generator=g) * 0.5
        data.append(dict(image=torch.rand(4, 3, 12, 12, generator=g), target=dict(boxes=torch.cat([lo, lo + 0.3], -1), labels=torch.randint(0, 2, (4,), generator=g))))
    bad = data[4]
    bad["target"]["boxes"][2] = torch.tensor([0.4, 0.4, 0.4, 0.4])
    bad["image"][2] = -40.0 * (1 + bad["image"][2])
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
