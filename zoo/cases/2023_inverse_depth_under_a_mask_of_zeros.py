"""Monocular depth compares inverse depths and masks the invalid pixels by multiplying; 1 / 0 is there before the mask."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2023_inverse_depth_under_a_mask_of_zeros", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="loss", cause="zero_division", op="reciprocal", op_also=["div", "mul"], module=None, line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[0, 2], fixes_that_work=["double_where", "clamp", "eps", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"double_where", "clamp", "eps"}


class DispNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)])
        s.decoder = nn.Conv2d(16, 1, 1)

    def forward(s, x):
        size = x.shape[-2:]
        for c in s.encoder:
            x = F.elu(c(x))
        return torch.sigmoid(F.interpolate(s.decoder(x), size=size, mode="bilinear", align_corners=False)).squeeze(1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = DispNet()

    def loss_fn(m, b):
        disp, depth = m(b["img"]), b["depth"]
        ok = (depth > 0).float()
        if fix == "double_where":
            depth = torch.where(depth > 0, depth, torch.ones_like(depth))
        if fix == "clamp":
            depth = depth.clamp(min=0.1)
        if fix == "eps":
            depth = depth + 1e-3
        target = torch.reciprocal(depth)  # <-- origin
        return ((disp - target).abs() * ok).sum() / ok.sum()

    g = torch.Generator().manual_seed(43)
    data = [dict(img=torch.rand(4, 3, 12, 12, generator=g), depth=1 + 9 * torch.rand(4, 12, 12, generator=g)) for _ in range(7)]
    data[3]["depth"][0, :3] = 0
    data[3]["depth"][2, 5, 5] = 0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
