"""A soft router anneals its temperature linearly in cycles and reaches exactly 0 at the end of one: logits / 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="306_temperature_annealed_to_zero", source="common report: Gumbel-softmax temperature annealed to zero",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="gate", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=None, fixes_that_work=["eps", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Gate(nn.Module):
    fix = None

    def __init__(s):
        super().__init__()
        s.route, s.temperature = nn.Linear(8, 3), 1.0

    def forward(s, x):
        t = torch.tensor(s.temperature)
        if s.fix == "eps":
            t = t + 1e-3
        return torch.softmax(s.route(x) / t, -1)  # <-- origin


class Mixture(nn.Module):
    def __init__(s):
        super().__init__()
        s.gate, s.experts = Gate(), nn.ModuleList(nn.Linear(8, 1) for _ in range(3))

    def forward(s, x):
        return (s.gate(x) * torch.cat([e(x) for e in s.experts], -1)).sum(-1, keepdim=True)


def loss_fn(m, b):
    return F.huber_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Mixture()
    m.gate.fix = fix

    def anneal(case, i):
        case.model.gate.temperature = 1.0 - (i % 7) / 6

    return Case(m, loss_fn, B.xy(10), B.adam(m, 1e-3), before_step=anneal)
