"""Graph attention over an edge list: scores are exponentiated and summed with index_add, without subtracting the maximum of each node. Nodes with a
large feature give scores beyond 88. The graph is one sample: there are no rows to blame."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="458_edge_softmax_without_its_maximum", source="common report: scatter softmax needs the segment maximum", symptom="nan_loss", phase="forward", cause="exp_overflow",
             op="exp", op_also=["div"], module="layers.1", line_marker="# <-- origin", first_bad_step=4, bad_rows=None, fixes_that_work=["clamp", "subtract_max", "skip_batch"],
             fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "subtract_max"}


def edge_softmax(score, dst, n, fix):
    if fix == "clamp":
        score = score.clamp(max=50.0)
    if fix == "subtract_max":
        top = torch.full((n,), -torch.inf).scatter_reduce(0, dst, score.detach(), "amax")
        score = score - top[dst]
    e = score.exp()  # <-- origin
    return e / torch.zeros(n).index_add(0, dst, e)[dst]


class GAT(nn.Module):
    def __init__(self, d, fix):
        super().__init__()
        self.q, self.k, self.v, self.fix = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False), nn.Linear(d, d), fix

    def forward(self, x, edges):
        src, dst = edges
        a = edge_softmax((self.q(x)[dst] * self.k(x)[src]).sum(-1), dst, len(x), self.fix)
        return torch.zeros_like(x).index_add(0, dst, a[:, None] * self.v(x)[src])


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.layers, self.out = nn.ModuleList([GAT(8, fix), GAT(8, fix)]), nn.Linear(8, 2)

    def forward(self, x, edges):
        for layer in self.layers:
            x = x + layer(x, edges)
        return self.out(x)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Net(fix), torch.Generator().manual_seed(5), []
    with torch.no_grad():
        m.layers[0].q.weight.mul_(0.02)
        m.layers[1].k.weight.copy_(2.0 * m.layers[1].q.weight)  # a layer that looks for likeness
        m.layers[1].q.weight.mul_(2.0)
    for i in range(7):
        x = torch.randn(10, 8, generator=g)
        if i == 4:
            x = 4.5 * x
        edges = torch.stack([torch.randint(0, 10, (30,), generator=g), torch.randint(0, 10, (30,), generator=g)])
        edges[:, :10] = torch.arange(10)
        data.append(dict(edge_index=edges, x=x, y=(x[:, 0] > 0).long()))
    return Case(m, lambda m, b: F.cross_entropy(m(b["x"], b["edge_index"]), b["y"]), data, B.sgd(m, 1e-3))
