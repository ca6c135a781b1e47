"""Potential with energy and force labels: the force is the derivative of the energy, taken without create_graph. The force term (99 percent of the loss)
is a constant for autograd; only the coarse energies teach."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="517_forces_without_create_graph", source="https://github.com/aiqm/torchani/pull/238", symptom="silent", phase="loss", cause="detached_graph", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: autograd.grad inside the loss without create_graph", objects="no: the force term has requires_grad=False"),
             quality_limit=0.25, margin=1.5, fixes_that_work=["create_graph"], fixes_that_do_not=["lr_up", "lr_down", "clip"])
FIXES = {"create_graph"}


class Potential(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(s, pos):
        return s.net(pos).squeeze(-1)


def molecules(n, seed, bs=24):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        p = torch.rand(bs, 3, generator=g) * 3 - 1.5
        e = torch.sin(2 * p).sum(-1) + 0.5 * p[:, 0] * p[:, 1]
        f = -2 * torch.cos(2 * p)
        f[:, 0] -= 0.5 * p[:, 1]
        f[:, 1] -= 0.5 * p[:, 0]
        out.append({"pos": p, "energy": e + 2.0 * torch.randn(bs, generator=g), "force": f})       # energies of a cheap method
    return out


def signal(case, i, r):
    return i >= 0 and case.extra["force_requires_grad"] is False


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Potential(), S.cat(molecules(10, 55))
    extra = {}

    def loss_fn(m, b):
        pos = b["pos"].clone().requires_grad_(True)
        force = -torch.autograd.grad(m(pos).sum(), pos, create_graph=bool(fix))[0]  # <-- origin
        extra["force_requires_grad"] = force.requires_grad
        return 0.01 * F.mse_loss(m(b["pos"]), b["energy"]) + 0.99 * F.mse_loss(force, b["force"])

    def quality(c):
        pos = test["pos"].clone().requires_grad_(True)
        f = -torch.autograd.grad(m(pos).sum(), pos)[0]
        return float(F.mse_loss(f, test["force"]))

    return SCase(m, loss_fn, molecules(150, 5), torch.optim.Adam(m.parameters(), lr=5e-3), quality=quality, extra=extra)
