"""Hardware-like fault: after the backward pass of step 6 the top exponent bit of one gradient element flips, 1.x becomes NaN.
The same step computed again is clean."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="238_bitflip_in_gradient", source="https://arxiv.org/abs/2102.11245",
             symptom="nan_grad", phase="backward", cause="transient_fault", op=None, module="decoder.fc2", line_marker=None, tensor="decoder.fc2.weight", tensor_kind="grad",
             first_bad_step=6, bad_rows=None, fixes_that_work=["recompute_step", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"recompute_step"}


class AutoEncoder(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder, s.decoder = B.mlp(12, 16, 4), B.mlp(4, 16, 12)

    def forward(s, x):
        return s.decoder(s.encoder(x))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["x"], reduction="sum")


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = AutoEncoder(), torch.Generator().manual_seed(9)

    def strike(case, i):
        if i == 6 and fix is None:
            grad = case.model.decoder.fc2.weight.grad
            hit = int(((grad.abs() >= 1) & (grad.abs() < 2)).flatten().nonzero()[0])
            grad.view(torch.int32).view(-1)[hit] ^= 1 << 30

    data = [dict(x=2 * torch.randn(16, 12, generator=g)) for _ in range(10)]
    return Case(m, loss_fn, data, B.adam(m), after_backward=strike)
