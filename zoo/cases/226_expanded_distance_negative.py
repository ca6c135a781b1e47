"""Prototype distances by the expansion |x|^2 + |p|^2 - 2 x.p: for a sample that almost coincides with a prototype the three large
terms cancel to a small negative number, sqrt gives NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="226_expanded_distance_negative", source="https://github.com/NVIDIA/raft/pull/1319",
             symptom="nan_loss", phase="forward", cause="cancellation", op="sqrt", op_also=["sub"], module="metric", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[2], fixes_that_work=["clamp", "two_pass", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "eps_tiny", "zero_nan_grads", "lr_down"])
FIXES = {"clamp", "two_pass", "eps_tiny"}


class Metric(nn.Module):
    fix = None

    def forward(s, x, p):
        if s.fix == "two_pass":
            return torch.linalg.vector_norm(x[:, None] - p[None], dim=-1)
        d2 = x.pow(2).sum(-1)[:, None] + p.pow(2).sum(-1)[None] - 2 * x @ p.T
        if s.fix == "clamp":
            d2 = d2.clamp_min(1e-6)
        if s.fix == "eps_tiny":
            d2 = d2 + 1e-12
        return torch.sqrt(d2)  # <-- origin


class Prototypes(nn.Module):
    def __init__(s):
        super().__init__()
        s.scale, s.bank, s.metric = nn.Linear(1, 4), nn.Parameter(30 * torch.randn(4, 12)), Metric()

    def forward(s, x):
        d = s.metric(x, s.bank)
        return -d * F.softplus(s.scale(torch.ones(1, 1)))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]) / 20, b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Prototypes(), torch.Generator().manual_seed(3)
    m.metric.fix = fix
    m.bank.requires_grad_(False)                  # prototypes are class means, refreshed elsewhere
    data = [dict(x=30 * torch.randn(5, 12, generator=g), y=torch.randint(0, 4, (5,), generator=g)) for _ in range(9)]
    best = None
    for _ in range(300):                          # deterministic search for a near-duplicate whose expansion is negative
        x = m.bank[1].detach() * (1 + 2e-6 * torch.randn(12, generator=g))
        X = data[5]["x"].clone()
        X[2] = x
        worst = (X.pow(2).sum(-1)[:, None] + m.bank.pow(2).sum(-1)[None] - 2 * X @ m.bank.T)[2, 1].item()
        alone = (x.pow(2).sum() + m.bank[1].pow(2).sum() - 2 * (X[2:3] @ m.bank.T)[0, 1]).item()
        if best is None or max(worst, alone) < best[0]:
            best = (max(worst, alone), x)
    data[5]["x"][2], data[5]["y"][2] = best[1], 1
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.1))
