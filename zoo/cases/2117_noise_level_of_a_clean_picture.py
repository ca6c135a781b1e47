"""A denoiser is told the noise level as log(sigma) / 4. Clean pictures are mixed in with sigma 0, and the sine of minus infinity is NaN."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2117_noise_level_of_a_clean_picture", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="log_zero", op="log", module="level", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[0, 4], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "clamp"}


class Level(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.fix = fix
        s.register_buffer("freq", torch.exp(torch.linspace(0, 3, 6)))

    def forward(s, sigma):
        if s.fix == "eps":
            sigma = sigma + 1e-4
        if s.fix == "clamp":
            sigma = sigma.clamp(min=2e-3)
        c = torch.log(sigma) / 4  # <-- origin
        a = c[:, None] * s.freq
        return torch.cat([a.sin(), a.cos()], -1)


class Denoiser(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.level, s.net = Level(fix), B.mlp(16 + 12, 48, 16)

    def forward(s, x, sigma):
        skip = 0.25 / (sigma.square() + 0.25)
        scale = (sigma.square() + 0.25).rsqrt()
        f = s.net(torch.cat([x * scale[:, None], s.level(sigma)], -1))
        return skip[:, None] * x + (sigma * 0.5 * scale)[:, None] * f


def loss_fn(m, b):
    noisy = b["x"] + b["sigma"][:, None] * b["noise"]
    return (m(noisy, b["sigma"]) - b["x"]).square().mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Denoiser(fix)
    g = torch.Generator().manual_seed(57)
    data = [dict(x=0.5 * torch.randn(7, 16, generator=g), noise=torch.randn(7, 16, generator=g), sigma=torch.exp(1.2 * torch.randn(7, generator=g) - 1.2)) for _ in range(9)]
    data[5]["sigma"][[0, 4]] = 0.0
    return Case(m, loss_fn, data, B.adam(m, 2e-3))
