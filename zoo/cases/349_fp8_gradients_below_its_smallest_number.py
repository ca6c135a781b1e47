"""Gradients of one layer's output are stored in e4m3 without a scale. The mean over many elements makes them smaller than
its smallest number (0.002): all are rounded to zero, and everything below never learns. Nothing is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="349_fp8_gradients_below_its_smallest_number", source="https://arxiv.org/abs/2209.05433 (gradients need a scale)", symptom="silent", phase="backward", cause="fp8_underflow",
             op="to_copy", op_also=["_to_copy", "to", None], module="fc1", line_marker="# <-- origin", first_bad_step=0, bad_rows=None,
             fixes_that_work=["current_scale", "no_fp8"], fixes_that_do_not=["clip", "skip_batch", "zero_nan_grads"])
FIXES = {"current_scale", "no_fp8"}


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fix):
        ctx.fix = fix
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        scale = 448.0 / grad.abs().amax().clamp_min(1e-12) if ctx.fix == "current_scale" else 1.0
        small = (grad * scale).to(torch.float8_e4m3fn)  # <-- origin
        return (grad if ctx.fix == "no_fp8" else small.to(grad.dtype) / scale), None


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fc1, self.fc2, self.fix = nn.Linear(8, 16), nn.Linear(16, 4), fix

    def forward(self, x):
        return self.fc2(torch.tanh(Round.apply(self.fc1(x), self.fix)))


def moved(log):
    return all(r.grads["fc1.weight"] > 0 for r in log if r.grads)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(fix), B.xy(12, bs=64, k=4)
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]) / 30, data, B.adam(m, 1e-3), healthy=moved)
