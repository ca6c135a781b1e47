"""Graph convolution with learned edge weights: D^-1/2 of an isolated node is inf and is overwritten with 0, as in the textbook;
the gradient of the power does not know that."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="414_gcn_norm_of_learned_edges", source="common report: deg_inv_sqrt.masked_fill(inf) with differentiable edge weights",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="pow", module="convs.0", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[2], fixes_that_work=["double_where", "eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"double_where", "eps", "clamp"}


def gcn_norm(adj, fix=None):
    deg = adj.sum(-1)
    if fix == "eps":
        deg = deg + 1e-6
    if fix == "clamp":
        deg = deg.clamp(min=1e-6)
    if fix == "double_where":
        ok = deg > 0
        inv = torch.where(ok, torch.where(ok, deg, 1.0).pow(-0.5), 0.0)
    else:
        inv = deg.pow(-0.5)  # <-- origin
        inv = inv.masked_fill(inv == float("inf"), 0.0)
    return inv.unsqueeze(-1) * adj * inv.unsqueeze(-2)


class GCNConv(nn.Module):
    def __init__(self, i, o, fix):
        super().__init__()
        self.lin, self.fix = nn.Linear(i, o), fix

    def forward(self, x, adj):
        return F.relu(gcn_norm(adj, self.fix) @ self.lin(x))


class GraphNet(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.edge = nn.Linear(2, 1)
        self.convs = nn.ModuleList([GCNConv(4, 8, fix)])
        self.read = nn.Linear(8, 1)

    def forward(self, g):
        w = torch.sigmoid(self.edge(g["edge_attr"])).squeeze(-1) * g["mask"]
        x = g["x"]
        for c in self.convs:
            x = c(x, w)
        return self.read(x.mean(1)).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g, data = GraphNet(fix), torch.Generator().manual_seed(17), []
    for _ in range(8):
        mask = (torch.rand(4, 5, 5, generator=g) > 0.4).float()
        mask = torch.maximum(mask, torch.eye(5).roll(1, 0))
        data.append({"graph": {"x": torch.randn(4, 5, 4, generator=g), "edge_attr": torch.randn(4, 5, 5, 2, generator=g), "mask": mask}, "y": torch.randn(4, generator=g)})
    data[5]["graph"]["mask"][2, 3] = 0.0
    return Case(net, lambda m, b: F.mse_loss(m(b["graph"]), b["y"]), data, B.adam(net, 1e-3))
