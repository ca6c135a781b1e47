"""The featuriser stores log(distance) per edge; a structure file lists one atom twice, so an edge feature is -inf before the graph
network ever sees it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="816_log_distance_of_duplicate_atoms", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None, line_marker=None, input_key="edge",
             first_bad_step=7, bad_rows=[1], fixes_that_work=["drop_rows", "skip_batch", "clip_feature"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clip_feature"}


class MPNN(nn.Module):
    def __init__(s):
        super().__init__()
        s.atom, s.edge, s.upd, s.out = nn.Embedding(5, 16), nn.Linear(1, 16), nn.GRUCell(16, 16), nn.Linear(16, 1)

    def forward(s, z, e):
        h = s.atom(z)
        b, n, d = h.shape
        for _ in range(2):
            msg = (F.silu(h[:, None] + s.edge(e[..., None])) * h[:, None]).sum(2)
            h = s.upd(msg.reshape(b * n, d), h.reshape(b * n, d)).view(b, n, d)
        return s.out(h.mean(1))


def loss_fn(m, b):
    return F.l1_loss(m(b["z"], b["edge"]), b["y"])


def make(seed=0, fix=None):
    m, g = MPNN(), torch.Generator().manual_seed(16)
    data = []
    for i in range(11):
        pos = torch.randn(5, 6, 3, generator=g)
        if i == 7:
            pos[1, 4] = pos[1, 2]
        dist = (pos[:, :, None] - pos[:, None]).norm(dim=-1) + torch.eye(6)
        e = torch.log(dist)
        if fix:
            e = e.clamp_min(-5.0)
        data.append(dict(z=torch.randint(0, 5, (5, 6), generator=g), edge=e, y=torch.randn(5, 1, generator=g)))
    return Case(m, loss_fn, data, B.adam(m))
