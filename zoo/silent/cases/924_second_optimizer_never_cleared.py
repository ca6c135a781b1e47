"""Recommender with two optimizers, one for the tables, one for the tower. Copied line: opt_tower.zero_grad() twice, opt_tables.zero_grad() never. The tables are driven by the sum of all gradients since the start."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="924_second_optimizer_never_cleared", source="constructed", symptom="silent", phase="loop", cause="missing_zero_grad", op=None, module="users", module_also=["items"], bad_rows=None,
             line_marker="# <-- origin", first_bad_step=1, knowable_at=1, tensors=["users.weight", "items.weight"],
             static_visible=dict(source="yes: two optimizers step, one is cleared twice", objects="no: after a step the tables' gradients are still there"),
             quality_limit=0.03, margin=4.0, fixes_that_work=["both"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"both"}


class Rec(nn.Module):
    def __init__(s, nu=20, ni=20, d=8):
        super().__init__()
        s.users, s.items = nn.Embedding(nu, d), nn.Embedding(ni, d)
        s.tower = nn.Sequential(nn.Linear(3 * d, 24), nn.ReLU(), nn.Linear(24, 1))
        for e in (s.users, s.items):
            nn.init.normal_(e.weight, std=0.3)

    def forward(s, u, i):
        a, b = s.users(u), s.items(i)
        return s.tower(torch.cat([a, b, a * b], -1))[:, 0]


def ratings(n, seed, bs=64):
    q = torch.Generator().manual_seed(6)
    a, b = torch.randn(20, 3, generator=q), torch.randn(20, 3, generator=q)
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        u, i = torch.randint(0, 20, (bs,), generator=g), torch.randint(0, 20, (bs,), generator=g)
        out.append({"u": u, "i": i, "y": (a[u] * b[i]).sum(-1) / 3 ** 0.5})
    return out


def loss_fn(m, b):
    return F.mse_loss(m(b["u"], b["i"]), b["y"])


def signal(case, i, r):
    """after the clearing at the end of the step one optimizer still holds gradients"""
    return i >= 1 and case.model.users.weight.grad is not None and bool(case.model.users.weight.grad.any())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Rec(), S.cat(ratings(10, 1))
    opt_tables = torch.optim.Adam([m.users.weight, m.items.weight], lr=3e-2)
    opt_tower = torch.optim.Adam(m.tower.parameters(), lr=1e-2)

    def step(case, b, i):
        loss = loss_fn(m, b)
        loss.backward()
        opt_tables.step()
        opt_tower.step()
        opt_tower.zero_grad()
        (opt_tables if fix else opt_tower).zero_grad()  # <-- origin
        return loss

    return SCase(m, loss_fn, ratings(200, 0), opt_tables, step=step, extra={"optimizers": [opt_tables, opt_tower]}, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
