"""The gradient of a layer's output is rounded to e5m2 with a fixed scale. One row's error is large: its gradient times
the scale leaves the range of e5m2 (57344) and becomes infinite; the loss stays finite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="342_fp8_gradient_at_a_fixed_scale", source="https://arxiv.org/abs/2209.05433 (E5M2 for gradients, scaled)", symptom="nan_grad", phase="backward", cause="fp8_overflow",
             op="to_copy", op_also=["_to_copy", "to"], module="fc1", line_marker="# <-- origin", first_bad_step=4, bad_rows=[3],
             fixes_that_work=["current_scale", "clamp", "no_fp8", "skip_batch", "drop_rows"], fixes_that_do_not=["lr_down"])
FIXES = {"current_scale", "clamp", "no_fp8"}
SCALE = 2.0**14


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fix):
        ctx.fix = fix
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        scale = 57344.0 / grad.abs().amax().clamp_min(1e-12) if ctx.fix == "current_scale" else SCALE
        scaled = grad * scale
        if ctx.fix == "clamp":
            scaled = scaled.clamp(-57344.0, 57344.0)
        small = scaled.to(torch.float8_e5m2)  # <-- origin
        return (grad if ctx.fix == "no_fp8" else small.to(grad.dtype) / scale), None


class Float8Linear(nn.Linear):
    fix = None

    def forward(self, x):
        return Round.apply(super().forward(x), self.fix)


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fc1, self.fc2 = Float8Linear(8, 16), nn.Linear(16, 1)
        self.fc1.fix = fix

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(fix), B.xy(8)
    data[4]["y"][3] = 3000.0
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, B.sgd(m, 1e-3))
