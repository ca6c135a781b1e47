"""Sum aggregation under fp16 autocast: the hub of a citation graph adds up two thousand neighbours and leaves the range of half."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2037_hub_of_the_graph_sums_past_65504", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="mm", op_also=["matmul", "addmm", "bmm"], module="layers.0", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=None, fixes_that_work=["bf16", "fp32", "upcast_module", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"upcast_module"}


class SumConv(nn.Module):
    def __init__(s, d, fix):
        super().__init__()
        s.lin, s.norm, s.fix = nn.Linear(d, d), nn.LayerNorm(d), fix

    def forward(s, x, adj):
        h = s.lin(x)
        if s.fix == "upcast_module":
            with torch.autocast("cpu", enabled=False):
                agg = adj @ h.float()
        else:
            agg = adj @ h  # <-- origin
        return torch.relu(s.norm(agg))


class Cites(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.layers, s.out = nn.ModuleList(SumConv(8, fix) for _ in range(2)), nn.Linear(8, 3)

    def forward(s, x, adj):
        for layer in s.layers:
            x = layer(x, adj)
        return s.out(x)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Cites(fix)
    g = torch.Generator().manual_seed(69)
    data = []
    for k in range(7):
        n = 240
        adj = (torch.rand(n, n, generator=g) < 0.02).float()
        if k == 4:
            adj[0] = 1
        data.append(dict(graph=dict(x=300 + 300 * torch.rand(n, 8, generator=g), adj=adj, y=torch.randint(0, 3, (n,), generator=g))))

    def loss_fn(m, b):
        b = b["graph"]
        return F.cross_entropy(m(b["x"], b["adj"]).float(), b["y"])

    return Case(m, loss_fn, data, B.adam(m, 1e-3), autocast=torch.float16)
