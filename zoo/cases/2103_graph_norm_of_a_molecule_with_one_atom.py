"""Molecules packed into one long list of atoms. Every graph is normalised by its own spread; helium is one atom, its spread is zero and rsqrt makes infinity of it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2103_graph_norm_of_a_molecule_with_one_atom", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="zero_division", op="rsqrt", module="norm1", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[3], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


def mean_of(x, graph, n):
    count = torch.zeros(n, 1).index_add(0, graph, torch.ones(len(x), 1))
    return torch.zeros(n, x.shape[1]).index_add(0, graph, x) / count


class GraphNorm(nn.Module):
    def __init__(s, d, fix=None):
        super().__init__()
        s.gain, s.shift, s.fix = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d)), fix

    def forward(s, x, graph, n):
        x = x - mean_of(x, graph, n)[graph]
        var = mean_of(x.square(), graph, n)
        scale = torch.rsqrt(var + (1e-5 if s.fix else 0.0))  # <-- origin
        return x * scale[graph] * s.gain + s.shift


class Net(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.embed, s.norm1, s.mix, s.out = nn.Embedding(9, 16), GraphNorm(16, fix), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(s, b):
        n, src, dst = len(b["energy"]), *b["edges"]
        h = s.embed(b["atom"])
        h = h + torch.zeros_like(h).index_add(0, dst, s.mix(h)[src])
        h = F.silu(s.norm1(h, b["graph"], n))
        return s.out(torch.zeros(n, 16).index_add(0, b["graph"], h)).squeeze(-1)


def pack(mols):
    atom, graph, edges, at = [], [], [], 0
    for k, (z, e) in enumerate(mols):
        atom.append(z)
        graph.append(torch.full((len(z),), k))
        edges.append(e + at)
        at += len(z)
    return dict(atom=torch.cat(atom), graph=torch.cat(graph), edges=torch.cat(edges, 1))


def unpack(b, k):
    ids = (b["graph"] == k).nonzero().squeeze(1)
    inside = (b["graph"][b["edges"][0]] == k)
    return b["atom"][ids], b["edges"][:, inside] - ids[0]


def select(b, rows):
    return dict(energy=b["energy"][rows], **pack([unpack(b, r) for r in rows]))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net(fix)
    g = torch.Generator().manual_seed(5)
    data = []
    for k in range(10):
        mols = []
        for r in range(5):
            n = 1 if (k, r) == (6, 3) else int(torch.randint(3, 7, (1,), generator=g))
            ring = torch.arange(n)
            z = torch.randperm(9, generator=g)[:n]
            mols.append((z, torch.stack([ring, (ring + 1) % n]) if n > 1 else torch.zeros(2, 0, dtype=torch.long)))
        data.append(dict(energy=torch.randn(5, generator=g), **pack(mols)))
    return Case(m, lambda m, b: F.l1_loss(m(b), b["energy"]), data, B.adam(m, 2e-3), select_rows=select)
