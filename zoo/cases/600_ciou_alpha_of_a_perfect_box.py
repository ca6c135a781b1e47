"""CIoU written from the paper: alpha = v / (1 - iou + v). One picture is filled by its object, the clipped prediction is the whole
picture too, so iou is exactly 1 and v exactly 0."""
import math
import torch
import torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="600_ciou_alpha_of_a_perfect_box", source="https://github.com/Zzh-tju/DIoU-pytorch-detectron/issues/3",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin", first_bad_step=6, bad_rows=[4],
             fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class BoxHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.1))
        self.delta = nn.Linear(16, 4)

    def forward(self, feats, anchors):
        return (anchors + 0.1 * self.delta(self.trunk(feats))).clamp(0.0, 1.0)


def iou_xyxy(p, t):
    wh = (torch.min(p[:, 2:], t[:, 2:]) - torch.max(p[:, :2], t[:, :2])).clamp(min=0)
    inter = wh[:, 0] * wh[:, 1]
    area = lambda b: (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    return inter / (area(p) + area(t) - inter)


def ciou(p, t, fix=None):
    iou = iou_xyxy(p, t)
    lt, rb = torch.min(p[:, :2], t[:, :2]), torch.max(p[:, 2:], t[:, 2:])
    diag = (rb - lt).pow(2).sum(-1)
    rho = ((p[:, :2] + p[:, 2:] - t[:, :2] - t[:, 2:]) / 2).pow(2).sum(-1)
    ratio = lambda b: torch.atan((b[:, 2] - b[:, 0]) / (b[:, 3] - b[:, 1]))
    v = 4 / math.pi ** 2 * (ratio(t) - ratio(p)).pow(2)
    with torch.no_grad():
        den = 1 - iou + v
        if fix == "eps":
            den = den + 1e-7
        if fix == "clamp":
            den = den.clamp_min(1e-7)
        alpha = v / den  # <-- origin
    return 1 - iou + rho / diag + alpha * v


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g, data = BoxHead(), torch.Generator().manual_seed(17), []
    for _ in range(10):
        lo, size = 0.1 + 0.3 * torch.rand(6, 2, generator=g), 0.25 + 0.2 * torch.rand(6, 2, generator=g)
        gt = torch.cat([lo, lo + size], 1)
        anchors = (gt + 0.05 * torch.randn(6, 4, generator=g)).clamp(0.02, 0.98)
        data.append((torch.randn(6, 8, generator=g), anchors, gt))
    data[6][2][4] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    data[6][1][4] = torch.tensor([-1.0, -1.0, 2.0, 2.0])  # anchors may reach over the border

    def loss_fn(net, batch):
        feats, anchors, gt = batch
        return ciou(net(feats, anchors), gt, fix).mean()

    return Case(net, loss_fn, data, B.adam(net, 1e-3))
