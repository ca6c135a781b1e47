"""Dice loss under fp16 autocast with smooth=1e-8. A picture without any foreground is predicted as background everywhere: the
half-precision sums are exactly 0 and so is the smoothing term."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="605_dice_smooth_vanishes_in_half", source="common report: dice loss with a tiny smooth term under amp",
             symptom="nan_loss", phase="loss", cause="fp16_underflow", op="div", module=None, line_marker="# <-- origin", first_bad_step=6, bad_rows=[1],
             fixes_that_work=["fp32", "bf16", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Seg(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Conv2d(1, 8, 3, padding=1, padding_mode="replicate")
        self.act = nn.LeakyReLU(0.3)
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        return self.head(self.act(self.enc(x)))


class Dice:
    def __init__(self, smooth):
        self.smooth = smooth

    def __call__(self, logits, target):
        p = torch.sigmoid(logits)
        t = target.type_as(p)
        dims = (1, 2, 3)
        inter, total = (p * t).sum(dims), p.sum(dims) + t.sum(dims)
        return 1 - ((2 * inter + self.smooth) / (total + self.smooth)).mean()  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g, dice = Seg(), torch.Generator().manual_seed(6), Dice(1e-3 if fix == "eps" else 1e-8)
    data = []
    for _ in range(10):
        x = torch.randn(4, 1, 6, 6, generator=g)
        data.append({"image": x, "mask": (x > 0.3).float()})
    flat = torch.ones(1, 1, 6, 6)
    with torch.no_grad():
        sign = -1.0 if float((net(flat * 300) - net(flat * 0)).mean()) > 0 else 1.0
    data[6]["image"][1], data[6]["mask"][1] = sign * 400.0, 0.0
    return Case(net, lambda m, b: dice(m(b["image"]), b["mask"]), data, torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9), autocast=torch.float16)
