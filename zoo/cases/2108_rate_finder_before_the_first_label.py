"""An optimizer that finds its own rate (D-adaptation, written after the paper) divides by the length of the summed gradients; the first batch carries no label, the sum is zero."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2108_rate_finder_before_the_first_label", source="written for the unseen set, no public report",
             symptom="nan_param", phase="optimizer", cause="zero_division", op="div", module=None, module_also=["fc1", "fc2", ""], line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["eps"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps"}


class DAdaptSGD(torch.optim.Optimizer):
    def __init__(s, params, lr=1.0, d0=1e-3, fix=None):
        super().__init__(params, dict(lr=lr))
        s.d, s.numerator, s.fix = torch.tensor(d0), torch.tensor(0.0), fix

    @torch.no_grad()
    def step(s, closure=None):
        length = torch.tensor(0.0)
        for group in s.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                total = s.state[p].setdefault("sum", torch.zeros_like(p))
                s.numerator += s.d * group["lr"] * (p.grad * total).sum()
                total.add_(p.grad * s.d)
                length += total.square().sum()
        length = length.sqrt() + (1e-12 if s.fix == "eps" else 0.0)
        s.d = torch.maximum(s.d, 2 * s.numerator / length).clamp(max=0.05)  # <-- origin
        for group in s.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * s.d * p.grad)


def loss_fn(m, b):
    error = (m(b["x"]) - b["y"]).square().squeeze(-1)
    return (error * b["labelled"]).sum() / b["labelled"].sum().clamp(min=1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.mlp(8, 24, 1)
    data = B.xy(9, seed=4)
    for k, b in enumerate(data):
        b["labelled"] = torch.ones(6) if k else torch.zeros(6)
    return Case(m, loss_fn, data, DAdaptSGD(m.parameters(), fix=fix))
