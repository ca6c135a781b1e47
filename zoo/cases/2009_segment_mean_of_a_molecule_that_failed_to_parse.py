"""Graphs are packed one after the other and pooled with segment_reduce; a molecule the parser gave up on has no atoms."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2009_segment_mean_of_a_molecule_that_failed_to_parse", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="empty_reduction", op="segment_reduce", module="readout", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[1], fixes_that_work=["guard", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"guard"}


class Readout(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.fix = fix

    def forward(s, x, lengths):
        if s.fix == "guard":
            return torch.segment_reduce(x, "sum", lengths=lengths, axis=0, unsafe=True) / lengths.clamp(min=1)[:, None]
        return torch.segment_reduce(x, "mean", lengths=lengths, axis=0, unsafe=True)  # <-- origin


class MolNet(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.atom, s.readout, s.head = B.mlp(6, 20, 20), Readout(fix), nn.Linear(20, 1)

    def forward(s, atoms, lengths):
        return s.head(s.readout(torch.tanh(s.atom(atoms)), lengths)).squeeze(-1)


def rows_of(b, rows):
    parts = torch.split(b["atoms"], b["lengths"].tolist())
    rows = list(rows)
    return dict(lengths=b["lengths"][rows], y=b["y"][rows], atoms=torch.cat([parts[k] for k in rows]))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = MolNet(fix)
    g = torch.Generator().manual_seed(21)
    data = []
    for k in range(8):
        n = torch.randint(3, 9, (5,), generator=g)
        if k == 4:
            n[1] = 0
        data.append(dict(lengths=n, y=torch.randn(5, generator=g), atoms=torch.randn(int(n.sum()), 6, generator=g)))
    return Case(m, lambda m, b: F.mse_loss(m(b["atoms"], b["lengths"]), b["y"]), data, B.adam(m, 3e-3), select_rows=rows_of)
