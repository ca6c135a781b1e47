"""Tabular regression with entity embeddings: self.embs = [nn.Embedding(n, d) for n in sizes], a plain list instead of nn.ModuleList. The tables take part in the forward pass and
get gradients, but model.parameters() does not know them: they stay random (and are not saved either)."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
TRUTH = dict(id="1306_embeddings_in_a_plain_list", source="constructed; the usual question on lists of modules and ModuleList", symptom="silent", phase="state",
             cause="optimizer_missing_params", op=None, module="embs", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="yes: a list of modules as attribute", objects="yes: modules in a plain list attribute of the model"),
             named=dict(kind="not_in_optimizer", names=["embs.0.weight", "embs.1.weight"]),
             quality_limit=0.25, margin=2.0, fixes_that_work=["module_list"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"module_list"}
SIZES = (40, 25)


class Tabular(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.embs = [nn.Embedding(n, 2) for n in SIZES]  # <-- origin
        if fix:
            s.embs = nn.ModuleList(s.embs)
        s.mlp = nn.Sequential(nn.Linear(4 + 3, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(s, cats, x):
        e = [emb(cats[:, k]) for k, emb in enumerate(s.embs)]
        return s.mlp(torch.cat(e + [x], -1)).squeeze(-1)


def loss_fn(m, b):
    return F.mse_loss(m(b["cats"], b["x"]), b["y"])


def rows(n, bs, g):
    gt = torch.Generator().manual_seed(4)
    shop, item = torch.randn(SIZES[0], generator=gt), torch.randn(SIZES[1], generator=gt)
    out = []
    for _ in range(n):
        c = torch.stack([torch.randint(0, k, (bs,), generator=g) for k in SIZES], 1)
        x = torch.randn(bs, 3, generator=g)
        out.append({"cats": c, "x": x, "y": shop[c[:, 0]] + item[c[:, 1]] + 0.5 * x[:, 0] + 0.05 * torch.randn(bs, generator=g)})
    return out


def signal(case, i, r):
    own = {id(p) for g in case.optimizer.param_groups for p in g["params"]}
    return any(id(e.weight) not in own for e in case.model.embs)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Tabular(fix), torch.Generator().manual_seed(26)
    data, test = rows(300, 32, g), rows(1, 1024, g)[0]

    def quality(c):
        with torch.no_grad():
            return float(loss_fn(m, test))

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=1e-2), quality=quality)
