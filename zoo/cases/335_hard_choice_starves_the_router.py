"""A router picks its expert by one_hot(argmax): the choice has no derivative and the router never learns."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="335_hard_choice_starves_the_router", source="common report: argmax routing without a straight-through estimator",
             symptom="silent", phase="backward", cause="no_trainable_grad", op=None, op_also=["argmax", "one_hot"], module="router", module_also=["", "router.score"], line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["straight_through"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"straight_through"}


class Router(nn.Module):
    fix = None

    def __init__(s):
        super().__init__()
        s.score = nn.Linear(8, 3)

    def forward(s, x):
        p = torch.softmax(s.score(x), -1)
        hard = F.one_hot(p.argmax(-1), 3).float()
        return hard + p - p.detach() if s.fix == "straight_through" else hard


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.router, s.experts = Router(), nn.ModuleList(nn.Linear(8, 1) for _ in range(3))

    def forward(s, x):
        return (s.router(x) * torch.cat([e(x) for e in s.experts], -1)).sum(-1, keepdim=True)


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net()
    m.router.fix = fix
    return Case(m, loss_fn, B.xy(8, bs=12), B.adam(m), healthy=lambda log: all(v for n, v in log[-1].grads.items() if n.startswith("router")))
