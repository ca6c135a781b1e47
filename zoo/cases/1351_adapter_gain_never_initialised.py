"""A new gain in the decoder was allocated with torch.empty and never written; here the memory held NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1351_adapter_gain_never_initialised", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, module="decoder.rescale", line_marker=None,
             tensor="decoder.rescale.gain", tensor_kind="param", first_bad_step=0, bad_rows=None,
             fixes_that_work=["init"], fixes_that_do_not=["clip", "skip_batch", "lr_down", "zero_nan_grads"])
FIXES = {"init"}


class Rescale(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.gain = nn.Parameter(torch.full((d,), float("nan")))     # what torch.empty(d) returned on that machine

    def forward(s, x):
        return x * s.gain


class Dec(nn.Module):
    def __init__(s):
        super().__init__()
        s.up, s.rescale, s.out = nn.Linear(6, 18), Rescale(18), nn.Linear(18, 9)

    def forward(s, z):
        return s.out(s.rescale(torch.relu(s.up(z))))


class AE(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder, s.decoder = B.mlp(9, 18, 6), Dec()

    def forward(s, x):
        return s.decoder(s.encoder(x))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["x"])


def make(seed=0, fix=None):
    m = AE()
    if fix:
        nn.init.ones_(m.decoder.rescale.gain)
    return Case(m, loss_fn, B.xy(8, d=9), B.adam(m))
