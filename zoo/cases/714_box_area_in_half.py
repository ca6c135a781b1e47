"""A detector under fp16 autocast, with a scaler, predicts boxes in pixels of a 640 x 640 picture. The area of a box that fills the picture is 409600: inf in
half, and area + area - intersection is inf - inf."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="714_box_area_in_half", source="https://github.com/pytorch/vision/pull/3383",
             symptom="nan_loss", phase="loss", cause="fp16_overflow", op="mul", module=None, line_marker="# <-- origin", first_bad_step=6, bad_rows=[0, 3],
             fixes_that_work=["fp32", "bf16", "upcast_module", "scale_down", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"upcast_module", "scale_down"}


def area(box):
    width, height = (box[..., 2:] - box[..., :2]).clamp_min(0).unbind(-1)
    return width * height  # <-- origin


def iou_loss(pred, target, fix):
    if fix == "upcast_module":
        pred, target = pred.float(), target.float()
    if fix == "scale_down":
        pred, target = pred / 640, target / 640
    lt, rb = torch.maximum(pred[..., :2], target[..., :2]), torch.minimum(pred[..., 2:], target[..., 2:])
    union = area(pred) + area(target)
    inter = area(torch.cat([lt, rb], -1))
    return 1 - inter / (union - inter + 1e-2)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.reg = nn.Sequential(nn.Linear(10, 16), nn.ReLU()), nn.Linear(16, 4)

    def forward(self, feat, anchor):
        delta = torch.tanh(self.reg(self.trunk(feat)))
        return anchor.to(delta.dtype) + 8 * delta


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Head(), torch.Generator().manual_seed(84)
    data = []
    for i in range(9):
        centre, size = 200 + 200 * torch.rand(5, 2, generator=g), 60 + 80 * torch.rand(5, 2, generator=g)
        gt = torch.cat([centre - size / 2, centre + size / 2], -1)
        if i == 6:
            gt[[0, 3]] = torch.tensor([[2.0, 0.0, 638.0, 640.0], [5.0, 80.0, 630.0, 560.0]])
        data.append({"feat": torch.randn(5, 10, generator=g), "anchor": gt + 6 * torch.randn(5, 4, generator=g), "gt": gt})

    def loss_fn(m, b):
        pred = m(b["feat"], b["anchor"])
        return iou_loss(pred, b["gt"].to(pred.dtype), fix).mean()

    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-2), autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=256.0))
