"""SSIM written without its stabilising constants: a fade to black in the target and a mask on the prediction give 0 / 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2022_ssim_of_two_black_frames_without_constants", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[1], fixes_that_work=["eps", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class Denoiser(nn.Module):
    def __init__(s):
        super().__init__()
        s.down, s.up = nn.Conv2d(1, 12, 4, stride=2, padding=1), nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1)

    def forward(s, x):
        return x * torch.sigmoid(s.up(F.silu(s.down(x))))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Denoiser()
    c = 1e-4 if fix == "eps" else 0.0

    def loss_fn(m, b):
        p, t = m(b["noisy"]), b["clean"]
        pool = lambda z: F.avg_pool2d(z, 4, 2)
        mp, mt = pool(p), pool(t)
        vp, vt, cov = pool(p * p) - mp * mp, pool(t * t) - mt * mt, pool(p * t) - mp * mt
        top = (2 * mp * mt + c) * (2 * cov + c)
        bottom = (mp.pow(2) + mt.pow(2) + c) * (vp + vt + c)
        return 1 - (top / bottom).mean()  # <-- origin

    g = torch.Generator().manual_seed(41)
    data = []
    for k in range(8):
        clean = torch.rand(4, 1, 12, 12, generator=g)
        noisy = (clean + 0.1 * torch.randn(4, 1, 12, 12, generator=g)).clamp(0, 1)
        if k == 5:
            clean[1], noisy[1] = 0, 0
        data.append(dict(noisy=noisy, clean=clean))
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
