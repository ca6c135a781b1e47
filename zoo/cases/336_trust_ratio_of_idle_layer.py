"""A layer-wise optimizer scales each update by |w| / |g|. An adapter that no sample of a batch used has a gradient of zero:
w / 0 is infinite, and infinity times the zero gradient is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="336_trust_ratio_of_idle_layer", source="common report: LARS trust ratio without an eps",
             symptom="nan_param", phase="optimizer", cause="zero_division", op="div", op_also=["mul"], module="adapter", line_marker="# <-- origin",
             tensor="adapter.weight", first_bad_step=5, bad_rows=None, fixes_that_work=["eps"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps"}


class Lars(torch.optim.Optimizer):
    def __init__(s, params, lr, eps):
        super().__init__(params, dict(lr=lr, eps=eps))

    @torch.no_grad()
    def step(s, closure=None):
        for group in s.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    ratio = p.norm() / (p.grad.norm() + group["eps"])  # <-- origin
                    p.sub_(group["lr"] * ratio * p.grad)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.adapter, s.head = nn.Linear(8, 12), nn.Linear(12, 12, bias=False), nn.Linear(12, 1)

    def forward(s, x, new):
        h = torch.tanh(s.body(x))
        return s.head(h + new[:, None] * s.adapter(h))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"], b["new"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(9)
    for i, b in enumerate(data):
        b["new"] = torch.zeros(6) if i == 5 else torch.tensor([1.0, 0, 1, 0, 0, 1])
    return Case(m, loss_fn, data, Lars(m.parameters(), 1e-2, 1e-8 if fix == "eps" else 0.0))
