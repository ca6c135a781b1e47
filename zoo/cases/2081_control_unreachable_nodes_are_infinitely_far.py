"""CONTROL: a graph transformer biases attention by exp(-distance); unreachable pairs have distance inf, whose weight is exactly 0."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2081_control_unreachable_nodes_are_infinitely_far", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class GraphAttention(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.q, s.k, s.v, s.slope = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Parameter(torch.tensor(0.5))

    def forward(s, x, dist):
        near = torch.exp(-dist)
        a = torch.softmax(s.q(x) @ s.k(x).transpose(1, 2) / 4 + s.slope * near, -1) * (0.1 + near)
        return a @ s.v(x)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.att, s.out = nn.Linear(5, 16), GraphAttention(16), nn.Linear(16, 1)

    def forward(s, x, dist):
        h = s.inp(x)
        return s.out((h + s.att(h, dist)).mean(1)).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net()
    g = torch.Generator().manual_seed(2)
    data = []
    for _ in range(12):
        d = torch.randint(0, 5, (4, 6, 6), generator=g).float()
        d[d > 3] = float("inf")
        x = torch.randn(4, 6, 5, generator=g)
        data.append(dict(x=x, dist=d, y=x.sum((1, 2)) / 10))
    return Case(m, lambda m, b: F.mse_loss(m(b["x"], b["dist"]), b["y"]), data, B.adam(m, 1e-3))
