"""PNA's attenuation scaler delta / log(degree + 1): an atom without bonds has degree 0, log(1) is 0, and the scaler is infinite; times the empty aggregate 0 it is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2002_pna_attenuation_of_an_atom_without_bonds", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="zero_division", op="reciprocal", op_also=["div", "mul"], module="convs.0", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[2], fixes_that_work=["clamp", "drop_rows", "skip_batch", "eps"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp"}


class PNA(nn.Module):
    def __init__(s, d, delta=1.1, fix=None):
        super().__init__()
        s.mix, s.delta, s.fix = nn.Linear(3 * d, d), delta, fix

    def forward(s, x, adj):
        agg = adj @ x
        logdeg = torch.log(adj.sum(-1, keepdim=True) + 1)
        if s.fix == "clamp":
            logdeg = logdeg.clamp(min=0.5)
        attenuate = s.delta / logdeg  # <-- origin
        return x + torch.relu(s.mix(torch.cat([agg, agg * logdeg / s.delta, agg * attenuate], -1)))


class Net(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.embed, s.convs, s.out = nn.Linear(5, 16), nn.ModuleList(PNA(16, fix=fix) for _ in range(2)), nn.Linear(16, 1)

    def forward(s, x, adj):
        h = s.embed(x)
        for conv in s.convs:
            h = conv(h, adj)
        return s.out(h.mean(1)).squeeze(-1)


def loss_fn(m, b):
    return F.l1_loss(m(b["x"], b["adj"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(11)
    data = []
    for k in range(8):
        a = (torch.rand(5, 7, 7, generator=g) < 0.35).float().triu(1)
        chain = torch.diag_embed(torch.ones(5, 6), 1)
        a = torch.maximum(a, chain)
        a = a + a.transpose(1, 2)
        if k == 4:
            a[2, 3, :] = 0
            a[2, :, 3] = 0
        data.append(dict(x=torch.randn(5, 7, 5, generator=g), adj=a, y=torch.randn(5, generator=g)))
    m = Net(fix)
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
