"""Physics-informed network for u'' = -pi^2 sin(pi x): the first derivative is taken with create_graph=True, the second without. The residual is a number without a graph; only the boundary term trains."""
import math, torch, torch.nn as nn
from protocol_silent import SCase
TRUTH = dict(id="910_second_derivative_without_graph", source="constructed", symptom="silent", phase="loss", cause="detached_graph", op="autograd.grad", module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, static_visible=dict(source="yes: autograd.grad without create_graph inside a loss", objects="no"),
             quality_limit=0.1, margin=5.0, fixes_that_work=["create_graph"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"create_graph"}


class Field(nn.Module):
    def __init__(s, h=32):
        super().__init__()
        s.a, s.b, s.c = nn.Linear(1, h), nn.Linear(h, h), nn.Linear(h, 1)

    def forward(s, x):
        return s.c(torch.tanh(s.b(torch.tanh(s.a(x)))))


def signal(case, i, r):
    return bool(case.extra.get("terms")) and not all(t for t in case.extra["terms"].values())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Field(), torch.Generator().manual_seed(0)
    ends, terms = torch.tensor([[0.0], [1.0]]), {}

    def loss_fn(m, b):
        x = b["x"].clone().requires_grad_(True)
        u = m(x)
        du, = torch.autograd.grad(u.sum(), x, create_graph=True)
        d2u, = torch.autograd.grad(du.sum(), x, create_graph=bool(fix), retain_graph=True)  # <-- origin
        residual = (d2u + math.pi ** 2 * torch.sin(math.pi * b["x"])).pow(2).mean()
        boundary = m(ends).pow(2).mean()
        terms.update(residual=residual.requires_grad, boundary=boundary.requires_grad)
        return 0.05 * residual + boundary

    def quality(c):
        x = torch.linspace(0, 1, 101)[:, None]
        with torch.no_grad():
            return float((m(x) - torch.sin(math.pi * x)).pow(2).mean())

    return SCase(m, loss_fn, [{"x": torch.rand(32, 1, generator=g)} for _ in range(400)], torch.optim.Adam(m.parameters(), lr=3e-3), extra={"terms": terms}, quality=quality)
