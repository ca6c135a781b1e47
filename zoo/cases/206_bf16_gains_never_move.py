"""Pure bf16 fine-tuning with SGD: every weight is of order one, every update is far below half an ulp (2^-9), nothing moves."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="206_bf16_gains_never_move", source="https://github.com/pytorch/ao/pull/1124",
             symptom="silent", phase="optimizer", cause="lost_update", op=None, op_also=["add", "add_"], module=None, module_also=["gain", "mix"], line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["fp32", "lr_up"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"fp32", "lr_up"}


class Gain(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.weight = nn.Parameter(1 + 0.5 * torch.rand(d))

    def forward(s, x):
        return x * s.weight


class Calibrator(nn.Module):
    """A frozen feature extractor with trainable per-channel gains, as in adapter or BitFit-like tuning."""

    def __init__(s):
        super().__init__()
        s.base, s.gain, s.mix = nn.Linear(8, 16).requires_grad_(False), Gain(16), Gain(16)

    def forward(s, x):
        return s.mix(torch.tanh(s.gain(s.base(x)))).sum(-1, keepdim=True)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    dt = torch.float32 if fix == "fp32" else torch.bfloat16
    m = Calibrator().to(dt)

    def loss_fn(m, b):
        return F.mse_loss(m(b["x"].to(dt)).float(), b["y"])

    opt = torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1 if fix == "lr_up" else 1e-4)
    return Case(m, loss_fn, B.xy(12), opt, healthy=lambda log: all(r.update_norm > 0 for r in log))
