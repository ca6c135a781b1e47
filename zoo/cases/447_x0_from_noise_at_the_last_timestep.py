"""Diffusion with a schedule rescaled to zero terminal SNR: the auxiliary loss recovers x0 by dividing by sqrt(alpha_bar), which is exactly
zero at the last timestep. One image of the batch drew it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="447_x0_from_noise_at_the_last_timestep", source="https://arxiv.org/abs/2305.08891", symptom="inf_loss", phase="loss", cause="zero_division", op="div", op_also=["reciprocal"], module=None,
             line_marker="# <-- origin", first_bad_step=3, bad_rows=[1], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class Schedule:
    def __init__(self, n=50):
        a = torch.linspace(0.9999, 0.9, n).cumprod(0).sqrt()
        a = (a - a[-1]) * a[0] / (a[0] - a[-1])
        self.bar = a**2

    def noisy(self, x, e, t):
        a = self.bar[t].view(-1, 1, 1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * e

    def clean(self, xt, e, t, fix):
        a = self.bar[t].view(-1, 1, 1, 1)
        root = a.sqrt()
        root = root + 1e-3 if fix == "eps" else root.clamp(min=1e-3) if fix == "clamp" else root
        return (xt - (1 - a).sqrt() * e) / root  # <-- origin


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.down, self.up = nn.Embedding(50, 8), nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x, t):
        return self.up(F.silu(self.down(x) + self.time(t)[:, :, None, None]))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, s, g, data = UNet(), Schedule(), torch.Generator().manual_seed(6), []
    for _ in range(7):
        data.append((torch.randn(4, 1, 6, 6, generator=g), torch.randint(0, 40, (4,), generator=g), torch.randn(4, 1, 6, 6, generator=g)))
    data[3][1][1] = 49

    def loss_fn(m, batch):
        x, t, e = batch
        xt = s.noisy(x, e, t)
        pred = m(xt, t)
        return F.mse_loss(pred, e) + 0.01 * F.l1_loss(s.clean(xt, pred, t, fix), x)

    return Case(m, loss_fn, data, B.adam(m, 1e-3))
