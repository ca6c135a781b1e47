"""Guided diffusion fine-tuning rescales the guided noise by std(text) / std(guided); the output convolution is zero-initialised, both are 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2024_guidance_rescale_of_a_zero_initialised_output", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["eps"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"eps"}


class UNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.time, s.text = nn.Linear(1, 16), nn.Embedding(5, 16)
        s.inp, s.mid, s.out = nn.Conv2d(2, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 2, 3, padding=1)
        nn.init.zeros_(s.out.weight)
        nn.init.zeros_(s.out.bias)

    def forward(s, x, t, c):
        h = F.silu(s.inp(x) + (s.time(t[:, None]) + s.text(c))[:, :, None, None])
        return s.out(F.silu(h + s.mid(h)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = UNet()

    def loss_fn(m, b):
        x = b["x0"] * (1 - b["t"])[:, None, None, None] + b["noise"] * b["t"][:, None, None, None]
        text, free = m(x, b["t"], b["c"]), m(x, b["t"], torch.zeros_like(b["c"]))
        guided = free + 3.0 * (text - free)
        flat = lambda z: z.detach().flatten(1).std(1)
        ratio = flat(text) / (flat(guided) + (1e-5 if fix == "eps" else 0.0))  # <-- origin
        guided = 0.7 * guided * ratio[:, None, None, None] + 0.3 * guided
        return F.mse_loss(guided, b["noise"])

    g = torch.Generator().manual_seed(45)
    data = [dict(x0=torch.randn(4, 2, 8, 8, generator=g), noise=torch.randn(4, 2, 8, 8, generator=g), t=torch.rand(4, generator=g),
                 c=torch.randint(1, 5, (4,), generator=g)) for _ in range(6)]
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
