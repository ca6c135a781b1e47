"""CONTROL: diffusion loss weighted by 1 / SNR: batches that draw a late timestep have a loss a thousand times higher, which is how it is meant."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2084_control_inverse_snr_weights_of_ten_thousand", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = B.mlp(9, 48, 8, nn.SiLU)

    def forward(s, x, t):
        return s.net(torch.cat([x, t], -1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net()
    g = torch.Generator().manual_seed(5)
    data = [dict(x0=torch.randn(8, 8, generator=g), noise=torch.randn(8, 8, generator=g), t=0.02 + 0.975 * torch.rand(8, 1, generator=g)) for _ in range(60)]

    def loss_fn(m, b):
        a, sd = 1 - b["t"], b["t"]
        w = (sd / a).pow(2).clamp(max=1e4)
        return (w * (m(a * b["x0"] + sd * b["noise"], b["t"]) - b["x0"]).pow(2)).mean()

    return Case(m, loss_fn, data, B.adam(m, 1e-3), clip_norm=1.0)
