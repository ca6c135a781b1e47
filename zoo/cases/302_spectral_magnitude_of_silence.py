"""A spectral loss takes sqrt(re^2 + im^2) of what the vocoder wrote. A gated row is exact silence: its magnitude is 0, the
derivative of the square root is infinite, the loss is finite."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="302_spectral_magnitude_of_silence", source="common report: multi-resolution STFT loss without a floor",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", op_also=["pow", "mul", "div"], module=None, line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[1], fixes_that_work=["eps", "complex_abs", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "complex_abs"}


class Vocoder(nn.Module):
    def __init__(s):
        super().__init__()
        s.body = B.mlp(8, 16, 32)

    def forward(s, x, gate):
        return s.body(x) * gate[:, None]


def make(seed=0, fix=None):
    torch.manual_seed(seed)

    def magnitude(wave):
        spectrum = torch.fft.rfft(wave)
        if fix == "complex_abs":
            return spectrum.abs()
        power = torch.view_as_real(spectrum).pow(2).sum(-1)
        return torch.sqrt(power + 1e-9 if fix == "eps" else power)  # <-- origin

    def loss_fn(m, b):
        return (magnitude(m(b["x"], b["gate"])) - magnitude(b["wave"])).abs().mean()

    m, data, g = Vocoder(), B.xy(8), torch.Generator().manual_seed(9)
    for b in data:
        b["wave"], b["gate"] = torch.randn(6, 32, generator=g), torch.rand(6, generator=g) + 0.2
    data[4]["gate"][1] = 0.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
