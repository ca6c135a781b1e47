"""Adaptive gradient clipping (NFNet) runs right after backward, while the gradients are still multiplied by the loss scale: every
tensor is clipped to 1 % of its weight norm and then divided by 65536. Nothing overflows, nothing learns."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="805_adaptive_clipping_of_scaled_gradients", source="written for this set after a common mistake; no single report",
             symptom="silent", phase="optimizer", cause="scaler_misuse", op=None, module=None, line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["unscale_first"], fixes_that_do_not=["lr_down", "clip"])
FIXES = {"unscale_first"}


class NFish(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem, s.body, s.head = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1), nn.Linear(12, 4)

    def forward(s, x):
        h = F.gelu(s.stem(x))
        return s.head((h + F.gelu(s.body(h))).mean([2, 3]))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]).float(), b["y"])


def agc(parameters, factor=0.05, eps=1e-3):
    for p in parameters:
        if p.grad is None:
            continue
        limit = factor * p.detach().norm().clamp_min(eps)
        norm = p.grad.norm().clamp_min(1e-6)
        p.grad.mul_((limit / norm).clamp(max=1.0))


def make(seed=0, fix=None):
    m, g = NFish(), torch.Generator().manual_seed(85)
    data = []
    for i in range(16):
        y = torch.arange(8) % 4
        x = 0.3 * torch.randn(8, 1, 8, 8, generator=g)
        x[torch.arange(8), 0] += y[:, None, None] * 0.8
        data.append(dict(x=x, y=y))

    sc = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14)
    unscale = sc.unscale_
    if fix == "unscale_first":
        sc.unscale_ = lambda opt: None             # done below, before the clipping

    def after(case, i):
        if fix == "unscale_first":
            unscale(case.optimizer)
        agc(case.model.parameters())

    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.5, momentum=0.9), autocast=torch.float16, scaler=sc, after_backward=after,
                healthy=lambda log: log[-1].loss < 0.9 * log[0].loss)
