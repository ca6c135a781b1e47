"""MAML with torch.func: the inner update is a unit step along the gradient. A task whose support targets are all met exactly has a zero
inner gradient and its direction is 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.func import functional_call, grad
from protocol import Case
import blocks as B
TRUTH = dict(id="446_maml_normalises_a_zero_inner_gradient", source="common report: normalised inner-loop gradients", symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None,
             line_marker="# <-- origin", first_bad_step=4, bad_rows=[2], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


def unit(g, fix):
    n = torch.sqrt(sum(v.detach().pow(2).sum() for v in g.values()))
    if fix == "eps":
        n = n + 1e-6
    if fix == "clamp":
        n = n.clamp(min=1e-6)
    return {k: v / n for k, v in g.items()}  # <-- origin


class MAML(nn.Module):
    def __init__(self):
        super().__init__()
        self.learner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def episode(m, b, fix):
    total = 0.0
    weights = dict(m.learner.named_parameters())

    def inner(w, x, y):
        return F.relu((functional_call(m.learner, w, (x,)).squeeze(-1) - y).abs() - 0.05).mean()

    for xs, ys, xq, yq in zip(b["support_x"], b["support_y"], b["query_x"], b["query_y"], strict=True):
        g = unit(grad(inner)(weights, xs, ys), fix)
        fast = {k: w - 0.05 * g[k] for k, w in weights.items()}
        total = total + F.mse_loss(functional_call(m.learner, fast, (xq,)).squeeze(-1), yq)
    return total / len(b["support_x"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = MAML(), torch.Generator().manual_seed(5), []
    for _ in range(7):
        x = torch.randn(4, 5, 4, generator=g)
        q = torch.randn(4, 5, 4, generator=g)
        data.append(dict(support_x=x, support_y=x.sum(-1).tanh(), query_x=q, query_y=q.sum(-1).tanh()))
    data[4]["support_x"][2] = 0.0
    with torch.no_grad():
        data[4]["support_y"][2] = m.learner(torch.zeros(5, 4)).squeeze(-1)
    return Case(m, lambda m, b: episode(m, b, fix), data, B.sgd(m, 1e-3))
