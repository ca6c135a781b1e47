"""CONTROL: dynamic time warping as a loss. The border of the cost table is +inf so that no path leaves it; the minimum of three cells never
is infinite inside."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="682_control_dynamic_time_warping_border", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def dtw(cost):
    batch, n, m = cost.shape
    inf = torch.full((batch,), float("inf"))
    above = [torch.zeros(batch)] + [inf] * m
    for i in range(n):
        row = [inf]
        for j in range(m):
            best = torch.minimum(torch.minimum(above[j + 1], row[j]), above[j])
            row.append(cost[:, i, j] + best)
        above = row
    return above[-1]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g = nn.GRU(3, 4, batch_first=True), torch.Generator().manual_seed(2)

    def loss_fn(net, b):
        return dtw((net(b["x"])[0][:, :, None] - b["y"][:, None]).square().sum(-1)).mean()

    data = [dict(x=torch.randn(4, 6, 3, generator=g), y=torch.randn(4, 7, 4, generator=g).tanh()) for _ in range(8)]
    return Case(net, loss_fn, data, torch.optim.Adam(net.parameters(), lr=5e-3))
