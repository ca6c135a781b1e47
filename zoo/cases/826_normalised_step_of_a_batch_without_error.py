"""Home-made normalised gradient descent divides by the global gradient norm. One batch satisfies the hinge completely: loss 0,
gradients 0, and the step itself is 0/0 for every weight."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="826_normalised_step_of_a_batch_without_error", source="written for this set after a common mistake; no single report",
             symptom="nan_param", phase="optimizer", cause="zero_division", op="div", op_also=["mul"], module=None, line_marker="# <-- origin",
             first_bad_step=7, bad_rows=None, fixes_that_work=["eps"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps"}


class NGD(torch.optim.Optimizer):
    def __init__(s, params, lr=1e-2, eps=0.0):
        super().__init__(params, dict(lr=lr, eps=eps))

    @torch.no_grad()
    def step(s, closure=None):
        for group in s.param_groups:
            ps = [p for p in group["params"] if p.grad is not None]
            total = torch.stack([p.grad.square().sum() for p in ps]).sum().sqrt() + group["eps"]
            for p in ps:
                p.sub_(group["lr"] * (p.grad / total))  # <-- origin


class Ranker(nn.Module):
    def __init__(s):
        super().__init__()
        s.tower, s.score = B.mlp(8, 32, 16, nn.ReLU), nn.Linear(16, 1)

    def forward(s, x):
        return s.score(s.tower(x)).squeeze(-1)


def loss_fn(m, b):
    return F.relu(b["margin"] - (m(b["good"]) - m(b["bad"]))).mean()


def make(seed=0, fix=None):
    m, g = Ranker(), torch.Generator().manual_seed(26)
    data = [dict(good=torch.randn(6, 8, generator=g), bad=torch.randn(6, 8, generator=g), margin=torch.full((6,), 0.5)) for _ in range(11)]
    data[7]["margin"] = torch.full((6,), -5.0)      # annotators were unsure: any order is accepted
    return Case(m, loss_fn, data, NGD(m.parameters(), lr=1e-2, eps=1e-8 if fix else 0.0))
