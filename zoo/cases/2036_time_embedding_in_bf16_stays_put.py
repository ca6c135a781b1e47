"""A diffusion model in pure bf16 with plain SGD at 1e-6: updates of the time embedding are far below half a unit in the last place."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2036_time_embedding_in_bf16_stays_put", source="written for the unseen set, no public report",
             symptom="silent", phase="optimizer", cause="lost_update", op=None, module="time.0", module_also=["time.2", "inp", "out", "time"], line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["fp32", "lr_up"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"fp32", "lr_up"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.time = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 32))
        s.inp, s.out = nn.Linear(10, 32), nn.Linear(32, 10)

    def forward(s, x, t):
        f = t[:, None] * torch.arange(1, 5).to(t.dtype)
        return s.out(F.silu(s.inp(x) + s.time(torch.cat([f.sin(), f.cos()], -1))))


def healthy(log):
    return all(r.update_norm > 0 for r in log)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    dt = torch.float32 if fix == "fp32" else torch.bfloat16
    m = Net().to(dt)
    with torch.no_grad():
        for p in m.parameters():
            p.add_(torch.where(p >= 0, 0.25, -0.25).to(dt))
    g = torch.Generator().manual_seed(67)
    data = [dict(x=torch.randn(8, 10, generator=g).to(dt), t=torch.rand(8, generator=g).to(dt), n=torch.randn(8, 10, generator=g).to(dt)) for _ in range(12)]
    return Case(m, lambda m, b: F.mse_loss(m(b["x"], b["t"]), b["n"]).float(), data, torch.optim.SGD(m.parameters(), lr=1e-1 if fix == "lr_up" else 1e-6), healthy=healthy)
