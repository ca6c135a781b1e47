"""CONTROL: adaptive clipping row by row inside the optimizer, written as torch.where(norm > limit, g * limit / norm, g). Rows that get no gradient have 0 * inf in the branch that is never taken, outside any graph."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2180_control_unit_wise_clipping_of_idle_rows", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class ClippedSGD(torch.optim.SGD):
    @torch.no_grad()
    def step(s, closure=None):
        for group in s.param_groups:
            for p in group["params"]:
                if p.grad is None or p.dim() < 2:
                    continue
                g, w = p.grad.norm(dim=1, keepdim=True), p.norm(dim=1, keepdim=True)
                limit = 0.1 * w.clamp(min=1e-3)
                p.grad.copy_(torch.where(g > limit, p.grad * (limit / g), p.grad))
        super().step(closure)


class Tags(nn.Module):
    def __init__(s):
        super().__init__()
        s.words, s.out = nn.Embedding(50, 12), nn.Linear(12, 4)

    def forward(s, ids):
        return s.out(torch.relu(s.words(ids)).mean(1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Tags()
    g = torch.Generator().manual_seed(6)
    data = [dict(ids=torch.randint(0, 50, (6, 3), generator=g), y=torch.randint(0, 4, (6,), generator=g)) for _ in range(14)]
    return Case(m, lambda m, b: F.cross_entropy(m(b["ids"]), b["y"]), data, ClippedSGD(m.parameters(), lr=0.3, momentum=0.9))
