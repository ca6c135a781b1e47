"""Denoising under fp16 autocast without a scaler, late in training: 2 * err / N with N = 131072 pixels is below the smallest
fp16 number when it enters the half-precision layers, so every gradient is exactly zero."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="203_fp16_mean_gradient_underflow", source="https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",
             symptom="silent", phase="backward", cause="fp16_underflow", op="to_copy", op_also=["_to_copy", "to", "convolution", "mse_loss", "mm", "addmm", "div"],
             module=None, module_also=["", "decoder"], line_marker="# <-- origin", first_bad_step=0, bad_rows=None, fixes_that_work=["bf16", "fp32", "loss_scale"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"loss_scale"}


class Denoiser(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder, s.decoder = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 3, padding=1)

    def forward(s, x):
        return s.decoder(torch.tanh(s.encoder(x)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Denoiser(), torch.Generator().manual_seed(4)

    def loss_fn(m, b):
        return F.mse_loss(m(b["x"]).float(), b["y"])  # <-- origin

    data = []
    for _ in range(5):
        x = torch.randn(8, 1, 128, 128, generator=g)
        with torch.no_grad():                     # almost converged: targets differ from the outputs by about 1e-4
            y = m(x) + 1e-4 * torch.randn(x.shape, generator=g)
        data.append(dict(x=x, y=y))
    sc = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14) if fix == "loss_scale" else None
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1.0), autocast=torch.float16, scaler=sc, healthy=lambda log: all(r.grad_norm > 0 for r in log))
