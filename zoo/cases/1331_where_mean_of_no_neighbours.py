"""Graph layer: torch.where(degree > 0, sum / degree, 0). The forward pass is clean; for an isolated node the unselected 0/0
returns as NaN in the gradient."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1331_where_mean_of_no_neighbours", source="https://github.com/pytorch/pytorch/issues/68425",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="div", op_also=["where", "mul"], module="gnn.1.agg", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[1], fixes_that_work=["double_where", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "nan_to_num"])
FIXES = {"double_where", "eps", "nan_to_num"}


class MeanNeighbours(nn.Module):
    fix = None

    def forward(s, h, adj):
        total, deg = adj @ h, adj.sum(-1, keepdim=True)
        if s.fix == "double_where":
            return torch.where(deg > 0, total / torch.where(deg > 0, deg, torch.ones_like(deg)), torch.zeros_like(total))
        if s.fix == "eps":
            deg = deg + 1e-6
        out = torch.where(deg > 0, total / deg, torch.zeros_like(total))  # <-- origin
        return torch.nan_to_num(out) if s.fix == "nan_to_num" else out


class GraphLayer(nn.Module):
    def __init__(s, i, o):
        super().__init__()
        s.agg, s.own, s.nbr = MeanNeighbours(), nn.Linear(i, o), nn.Linear(i, o)

    def forward(s, h, adj):
        return torch.tanh(s.own(h) + s.nbr(s.agg(h, adj)))


class Graph(nn.Module):
    def __init__(s):
        super().__init__()
        s.gnn, s.out = nn.ModuleList([GraphLayer(5, 12), GraphLayer(12, 12)]), nn.Linear(12, 1)

    def forward(s, h, adj):
        for l in s.gnn:
            h = l(h, adj)
        return s.out(h.mean(1)).squeeze(-1)


def loss_fn(m, b):
    return F.mse_loss(m(b["nodes"], b["adj"]), b["y"])


def make(seed=0, fix=None):
    m, g = Graph(), torch.Generator().manual_seed(5)
    for l in m.gnn:
        l.agg.fix = fix
    data = []
    for _ in range(10):
        a = (torch.rand(4, 6, 6, generator=g) > 0.5).float()
        a = ((a + a.transpose(1, 2) + torch.eye(6).roll(1, 0)) > 0).float()
        data.append(dict(nodes=torch.randn(4, 6, 5, generator=g), adj=a, y=torch.randn(4, generator=g)))
    data[7]["adj"][1, 3] = 0.0
    return Case(m, loss_fn, data, B.adam(m))
