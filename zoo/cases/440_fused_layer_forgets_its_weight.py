"""A hand-written autograd.Function for a scaled linear layer returns None for the weight: the loss falls through the other parameters
and nobody notices that this one never gets a gradient."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="440_fused_layer_forgets_its_weight", source="common report: custom backward returns None for a parameter", symptom="silent", phase="backward", cause="no_trainable_grad", op=None,
             module="proj", line_marker=None, tensor="proj.weight", first_bad_step=0, bad_rows=None, fixes_that_work=["return_weight_grad"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"return_weight_grad"}


class ScaledLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, scale, whole):
        ctx.save_for_backward(x, w)
        ctx.scale, ctx.whole = scale, whole
        return scale * (x @ w.T)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gw = ctx.scale * g.flatten(0, -2).T @ x.flatten(0, -2) if ctx.whole else None
        return ctx.scale * (g @ w), gw, None, None


class Projection(nn.Module):
    def __init__(self, i, o, whole):
        super().__init__()
        self.weight, self.whole = nn.Parameter(torch.randn(o, i) / i**0.5), whole

    def forward(self, x):
        return ScaledLinear.apply(x, self.weight, 0.5, self.whole)


class Net(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.inp, self.proj, self.out = nn.Linear(8, 16), Projection(16, 16, whole), nn.Linear(16, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.proj(torch.tanh(self.inp(x)))))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net(fix == "return_weight_grad")
    case = Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), B.xy(8), B.adam(m, 1e-3))
    case.healthy = lambda log: all(r.loss_ok and r.grad_ok for r in log) and all((r.grads["proj.weight"] or 0) > 0 for r in log)
    return case
