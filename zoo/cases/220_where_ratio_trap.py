"""Safe division written as where(den > 0, num / den, 0): the forward value is right, the unselected 0/0 sends NaN back through
the learned denominator. The ratio lives in a functional helper called from a nested module."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="220_where_ratio_trap", source="https://github.com/pytorch/pytorch/issues/4132",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="div", op_also=["mul", "neg"], module="blocks.1.agg", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0, 3], fixes_that_work=["double_where", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "nan_to_num", "lr_down", "zero_nan_grads"])
FIXES = {"double_where", "nan_to_num"}


def ratio(num, den, fix):
    if fix == "double_where":
        return torch.where(den > 0, num / torch.where(den > 0, den, torch.ones_like(den)), torch.zeros_like(num))
    r = torch.where(den > 0, num / den, torch.zeros_like(num))  # <-- origin
    return torch.nan_to_num(r) if fix == "nan_to_num" else r


class Aggregate(nn.Module):
    fix = None

    def __init__(s, d):
        super().__init__()
        s.gate = nn.Linear(d, 1)

    def forward(s, h, edge):
        w = F.relu(s.gate(h))[..., 0] * edge       # learned weight of every neighbour, 0 where there is no edge
        return ratio((w[..., None] * h).sum(1), w.sum(1, keepdim=True), s.fix)


class GraphBlock(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.agg, s.lin = Aggregate(d), nn.Linear(d, d)

    def forward(s, h, edge):
        return torch.tanh(s.lin(h) + s.agg(h, edge)[:, None])


class GraphNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.blocks, s.out = nn.ModuleList(GraphBlock(6) for _ in range(2)), nn.Linear(6, 1)

    def forward(s, x, edge):
        h = x
        for i, blk in enumerate(s.blocks):
            h = blk(h, edge[:, i])
        return s.out(h.mean(1))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"], b["edge"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = GraphNet(), torch.Generator().manual_seed(5)
    for blk in m.blocks:
        blk.agg.fix = fix
        nn.init.constant_(blk.agg.gate.bias, 3.0)  # gates are open: only an isolated node has no weight at all
    data = [dict(x=torch.randn(5, 4, 6, generator=g), edge=torch.ones(5, 2, 4), y=torch.randn(5, 1, generator=g)) for _ in range(10)]
    for r in (0, 3):
        data[6]["edge"][r, 1] = 0.0                # isolated in the second hop
    return Case(m, loss_fn, data, B.adam(m))
