"""CONTROL: cdist of a cloud with itself and vector_norm of equal points: both define the derivative at 0 as 0."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="397_control_distance_of_a_point_to_itself", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    p = m(b["p"])
    own = torch.linalg.vector_norm(p - p.roll(b["shift"], 1), dim=-1)
    return (torch.cdist(p, p) - b["d"]).pow(2).mean() + own.mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = nn.Linear(3, 3), torch.Generator().manual_seed(3)
    data = [dict(p=torch.randn(3, 4, 3, generator=g), d=torch.rand(3, 4, 4, generator=g), shift=i % 2) for i in range(9)]
    return Case(m, loss_fn, data, B.adam(m, 1e-2))
