"""A hand-made HOG layer divides the image gradient by its magnitude: a scanned blank page has none anywhere."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2006_gradient_directions_of_a_blank_sheet", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="hog", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[4], fixes_that_work=["eps", "double_where", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "double_where"}


class Hog(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.fix = fix
        k = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
        s.register_buffer("kernel", torch.stack([k, k.T])[:, None])

    def forward(s, img):
        g = F.conv2d(img, s.kernel)
        size = g.pow(2).sum(1, keepdim=True).sqrt()
        if s.fix == "eps":
            size = size + 1e-6
        if s.fix == "double_where":
            size = torch.where(size > 0, size, torch.ones_like(size))
        return torch.cat([g / size, size], 1)  # <-- origin


class PageNet(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.hog, s.conv, s.fc = Hog(fix), nn.Conv2d(3, 8, 3, stride=2), nn.Linear(8, 3)

    def forward(s, x):
        return s.fc(torch.relu(s.conv(s.hog(x))).mean((2, 3)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = PageNet(fix)
    g = torch.Generator().manual_seed(4)
    data = [dict(img=torch.rand(6, 1, 14, 14, generator=g), y=torch.randint(0, 3, (6,), generator=g)) for _ in range(10)]
    data[7]["img"][4] = 1.0
    return Case(m, lambda m, b: F.cross_entropy(m(b["img"]), b["y"]), data, B.sgd(m, 0.05, momentum=0.9))
