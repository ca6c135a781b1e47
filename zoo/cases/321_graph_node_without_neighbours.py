"""Graph attention over a dense adjacency: an isolated node of one graph has no neighbour, every one of its scores is -inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="321_graph_node_without_neighbours", source="common report: isolated nodes in dense graph attention",
             symptom="nan_loss", phase="forward", cause="masked_softmax_row", op="softmax", module="layers.0", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[1], fixes_that_work=["self_loops", "finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"self_loops", "finfo_min"}


class GraphAttention(nn.Module):
    fix = None

    def __init__(s, d):
        super().__init__()
        s.value, s.here, s.there = nn.Linear(d, d), nn.Linear(d, 1), nn.Linear(d, 1)

    def forward(s, x, edges):
        if s.fix == "self_loops":
            edges = edges | torch.eye(edges.shape[-1], dtype=torch.bool)
        score = F.leaky_relu(s.here(x) + s.there(x).transpose(1, 2), 0.2)
        score[~edges] = -1e30 if s.fix == "finfo_min" else -torch.inf
        return F.elu(score.softmax(-1) @ s.value(x))  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers, s.head = nn.ModuleList(GraphAttention(8) for _ in range(2)), nn.Linear(8, 1)

    def forward(s, x, edges):
        for layer in s.layers:
            x = x + layer(x, edges)
        return s.head(x.mean(1))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"], b["edges"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Net(), torch.Generator().manual_seed(5), []
    for layer in m.layers:
        layer.fix = fix
    for _ in range(8):
        e = torch.rand(4, 5, 5, generator=g) > 0.5
        e = e | e.transpose(1, 2) | torch.eye(5, dtype=torch.bool).roll(1, 0)
        data.append(dict(x=torch.randn(4, 5, 8, generator=g), edges=e, y=torch.randn(4, 1, generator=g)))
    data[4]["edges"][1, 3] = False
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
