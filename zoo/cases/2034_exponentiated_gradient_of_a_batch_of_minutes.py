"""Exponentiated gradient keeps portfolio weights on the simplex: w * exp(-eta g). The loss is a sum; one batch holds minutes instead of days, the finite gradient is large, exp overflows and the renormalisation is inf / inf."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2034_exponentiated_gradient_of_a_batch_of_minutes", source="written for the unseen set, no public report",
             symptom="nan_param", phase="optimizer", cause="exp_overflow", op="exp", module="", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=None, fixes_that_work=["clamp", "clip", "lr_down", "subtract_max"], fixes_that_do_not=["zero_nan_grads", "skip_batch"])
FIXES = {"clamp", "subtract_max"}


class EG(torch.optim.Optimizer):
    def __init__(s, params, lr, fix):
        super().__init__(params, dict(lr=lr))
        s.fix = fix

    @torch.no_grad()
    def step(s, closure=None):
        for group in s.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                a = -group["lr"] * w.grad
                if s.fix == "clamp":
                    a = a.clamp(-20, 20)
                if s.fix == "subtract_max":
                    a = a - a.max()
                w.mul_(torch.exp(a))  # <-- origin
                w.div_(w.sum())


class Portfolio(nn.Module):
    def __init__(s, n=6):
        super().__init__()
        s.w = nn.Parameter(torch.full((n,), 1 / n))

    def forward(s, r):
        return r @ s.w


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Portfolio()
    g = torch.Generator().manual_seed(63)
    data = [dict(r=0.05 + 0.02 * torch.randn(5000 if k == 6 else 12, 6, generator=g)) for k in range(10)]

    def loss_fn(m, b):
        y = m(b["r"])
        return -y.sum() + 5.0 * torch.relu(-y).pow(2).sum()

    return Case(m, loss_fn, data, EG(m.parameters(), 0.5, fix))
