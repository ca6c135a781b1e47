"""Periodic wrapping with remainder(x, cell): a molecule in vacuum is stored with a cell of length 0, and the remainder of a division by 0 is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2045_molecule_in_a_cell_of_length_zero", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="zero_division", op="remainder", module="wrap", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[0], fixes_that_work=["double_where", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"double_where"}


class Wrap(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.fix = fix

    def forward(s, pos, cell):
        c = cell[:, None, :]
        if s.fix == "double_where":
            return torch.where(c > 0, torch.remainder(pos, torch.where(c > 0, c, torch.ones_like(c))), pos)
        return torch.remainder(pos, c)  # <-- origin


class Energy(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.wrap, s.kind, s.net = Wrap(fix), nn.Embedding(5, 8), B.mlp(11, 24, 1, nn.SiLU)

    def forward(s, pos, cell, kind):
        return s.net(torch.cat([s.wrap(pos, cell), s.kind(kind)], -1)).sum((1, 2))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Energy(fix)
    g = torch.Generator().manual_seed(85)
    data = [dict(pos=4 * torch.randn(4, 6, 3, generator=g), cell=3 + torch.rand(4, 3, generator=g), kind=torch.randint(0, 5, (4, 6), generator=g), e=torch.randn(4, generator=g)) for _ in range(8)]
    data[4]["cell"][0] = 0
    return Case(m, lambda m, b: F.mse_loss(m(b["pos"], b["cell"], b["kind"]), b["e"]), data, B.adam(m, 2e-3))
