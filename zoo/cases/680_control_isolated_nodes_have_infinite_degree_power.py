"""CONTROL: the usual GCN normalisation: deg ** -0.5 is inf for nodes without edges and is set to 0 before use. The degrees are data."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="680_control_isolated_nodes_have_infinite_degree_power", source="https://github.com/pyg-team/pytorch_geometric (gcn_norm: masked_fill_ of inf)", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class GCN(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(6, d), nn.Linear(d, 3)

    def norm(self, adj):
        inv = adj.sum(-1).pow(-0.5)
        inv.masked_fill_(inv == float("inf"), 0.0)
        return inv[..., None] * adj * inv[..., None, :]

    def forward(self, x, adj):
        a = self.norm(adj)
        h = F.relu(a @ self.lin1(x) + self.lin1(x))
        return (a @ self.lin2(h) + self.lin2(h)).mean(1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = GCN(), torch.Generator().manual_seed(1)
    data = []
    for i in range(10):
        adj = (torch.rand(5, 7, 7, generator=g) < 0.3).float()
        adj = ((adj + adj.mT) > 0).float() * (1 - torch.eye(7))
        adj[i % 5, 2], adj[i % 5, :, 2] = 0.0, 0.0
        if i == 6:
            adj[3] = 0.0
        data.append((torch.randn(5, 7, 6, generator=g), adj, torch.randint(0, 3, (5,), generator=g)))
    return Case(m, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), data, torch.optim.Adam(m.parameters(), lr=5e-3))
