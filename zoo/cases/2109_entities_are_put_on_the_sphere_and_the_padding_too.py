"""TransE keeps its entities at length one: after every update the table is divided by its row norms. Row 0 is the padding entity, a zero vector, and becomes NaN in the first update."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2109_entities_are_put_on_the_sphere_and_the_padding_too", source="written for the unseen set, no public report",
             symptom="nan_param", phase="optimizer", cause="zero_division", op="div", module="entity", line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, tensor="entity.weight", fixes_that_work=["eps", "clamp"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class ProjectedSGD(torch.optim.SGD):
    def __init__(s, params, on_sphere, fix, **kw):
        super().__init__(params, **kw)
        s.on_sphere, s.fix = on_sphere, fix

    @torch.no_grad()
    def step(s, closure=None):
        super().step(closure)
        for w in s.on_sphere:
            length = w.norm(dim=1, keepdim=True)
            if s.fix == "eps":
                length = length + 1e-9
            if s.fix == "clamp":
                length = length.clamp(min=1e-9)
            w.div_(length)  # <-- origin


class TransE(nn.Module):
    def __init__(s, n=30, r=5, d=12):
        super().__init__()
        s.entity, s.relation = nn.Embedding(n, d, padding_idx=0), nn.Embedding(r, d)

    def forward(s, h, r, t, context):
        around = s.entity(context).sum(1) / (context > 0).sum(1, keepdim=True).clamp(min=1)
        return (s.entity(h) + 0.2 * around + s.relation(r) - s.entity(t)).abs().sum(-1)


def loss_fn(m, b):
    good, bad = m(b["h"], b["r"], b["t"], b["context"]), m(b["h"], b["r"], b["wrong"], b["context"])
    return torch.relu(1 + good - bad).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = TransE()
    g = torch.Generator().manual_seed(19)
    draw = lambda *size, hi=30: torch.randint(1, hi, size, generator=g)
    data = []
    for k in range(9):
        context = draw(8, 4)
        if k > 2:
            context[::3, 2:] = 0
        data.append(dict(h=draw(8), r=draw(8, hi=5), t=draw(8), wrong=draw(8), context=context))
    return Case(m, loss_fn, data, ProjectedSGD(m.parameters(), [m.entity.weight], fix, lr=0.05))
