"""Ratings with two optimizers, one for the embedding tables and one for the dense net. Only the dense one is cleared: the tables are moved by the
sum of all gradients since the beginning of the run."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="500_table_gradients_pile_up", source="constructed; neighbours: https://github.com/wenet-e2e/wekws/pull/73, https://github.com/xingyizhou/CenterNet/issues/928", symptom="silent",
             phase="loop", cause="missing_zero_grad", op=None, module="users", module_also=["items"], bad_rows=None, line_marker="# <-- origin", first_bad_step=1, knowable_at=1,
             tensors=["users.weight", "items.weight"], named=dict(kind="grad_never_cleared", names=["users.weight", "items.weight"]),
             static_visible=dict(source="yes: two optimizers step, one is cleared", objects="no"),
             quality_limit=0.15, margin=3.0, fixes_that_work=["clear_both"], fixes_that_do_not=["lr_up", "longer"])
FIXES = {"clear_both"}


class Ratings(nn.Module):
    def __init__(s, n_u=40, n_i=30, d=8):
        super().__init__()
        s.users, s.items = nn.Embedding(n_u, d), nn.Embedding(n_i, d)
        s.dense = nn.Sequential(nn.Linear(3 * d, 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.normal_(s.users.weight, std=0.3)
        nn.init.normal_(s.items.weight, std=0.3)

    def forward(s, u, i):
        a, b = s.users(u), s.items(i)
        return s.dense(torch.cat([a, b, a * b], -1)).squeeze(-1)


def ratings(n, seed, bs=48):
    t = torch.Generator().manual_seed(4)
    pu, pi = torch.randn(40, 3, generator=t), torch.randn(30, 3, generator=t)
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        u, i = torch.randint(0, 40, (bs,), generator=g), torch.randint(0, 30, (bs,), generator=g)
        out.append({"u": u, "i": i, "r": (pu[u] * pi[i]).sum(-1) + 0.1 * torch.randn(bs, generator=g)})
    return out


def loss_fn(m, b):
    return F.mse_loss(m(b["u"], b["i"]), b["r"])


def signal(case, i, r):
    """at the second backward the tables still hold the gradient of the first"""
    g = case.model.users.weight.grad
    was, case.extra["g"] = case.extra.get("g"), None if g is None else g.clone()
    if not r or was is None or g is None:
        return False
    rows = was.abs().sum(-1) > 0
    rows[case.batches[i]["u"]] = False
    return bool(rows.any()) and torch.equal(g[rows], was[rows])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Ratings(), S.cat(ratings(20, 991))
    tables = torch.optim.Adam([*m.users.parameters(), *m.items.parameters()], lr=2e-2)
    dense = torch.optim.Adam(m.dense.parameters(), lr=1e-2)

    def step(case, b, i):
        dense.zero_grad()
        if fix:
            tables.zero_grad()
        loss = loss_fn(m, b)
        loss.backward()
        dense.step()
        tables.step()  # <-- origin
        return loss

    return SCase(m, loss_fn, ratings(250, 12), dense, step=step, extra={"optimizers": [dense, tables]}, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
