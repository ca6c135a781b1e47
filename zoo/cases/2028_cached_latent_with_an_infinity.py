"""Latent diffusion on cached latents: the encoder that wrote the cache overflowed in one place of one picture."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2028_cached_latent_with_an_infinity", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None, module_also=["down", ""], line_marker=None,
             first_bad_step=6, bad_rows=[1], fixes_that_work=["drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = set()


class Denoise(nn.Module):
    def __init__(s):
        super().__init__()
        s.down, s.norm, s.up, s.t = nn.Conv2d(4, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ConvTranspose2d(16, 4, 4, 2, 1), nn.Embedding(10, 16)

    def forward(s, z, t):
        return s.up(F.silu(s.norm(s.down(z)) + s.t(t)[:, :, None, None]))


def loss_fn(m, b):
    a = (1 - b["t"].float() / 10)[:, None, None, None]
    return F.mse_loss(m(a.sqrt() * b["latent"] + (1 - a).sqrt() * b["noise"], b["t"]), b["noise"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Denoise()
    g = torch.Generator().manual_seed(53)
    data = [dict(latent=torch.randn(3, 4, 8, 8, generator=g), noise=torch.randn(3, 4, 8, 8, generator=g), t=torch.randint(0, 10, (3,), generator=g)) for _ in range(9)]
    data[6]["latent"][1, 2, 3, 3] = float("inf")
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
