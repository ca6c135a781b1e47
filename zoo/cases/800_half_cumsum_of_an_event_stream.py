"""Point-process model in half precision: the compensator is a running sum of the intensities over time; a night of heavy traffic
takes the running sum past 65504."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="800_half_cumsum_of_an_event_stream", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="cumsum", module="compensator", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[4], fixes_that_work=["fp32", "bf16", "upcast_module", "skip_batch", "drop_rows"],
             fixes_that_do_not=["clip", "lr_down"])
FIXES = {"fp32", "bf16", "upcast_module"}


class Compensator(nn.Module):
    wide = False

    def forward(s, rate):
        if s.wide:
            return torch.cumsum(rate.float(), -1).div(rate.shape[-1]).to(rate.dtype)
        return torch.cumsum(rate, -1) / rate.shape[-1]  # <-- origin


class PointProcess(nn.Module):
    def __init__(s):
        super().__init__()
        s.feat, s.rate, s.compensator, s.norm, s.out = nn.Linear(6, 16), nn.Linear(16, 1), Compensator(), nn.LayerNorm(48), nn.Linear(48, 3)

    def forward(s, x, volume):
        lam = F.softplus(s.rate(torch.tanh(s.feat(x)))).squeeze(-1) * volume
        return s.out(s.norm(s.compensator(lam)))


def loss_fn(m, b):
    dt = m.out.weight.dtype
    return F.cross_entropy(m(b["x"].to(dt), b["volume"].to(dt)).float(), b["y"])


def make(seed=0, fix=None):
    m = PointProcess().to({"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16))
    m.compensator.wide = fix == "upcast_module"
    g = torch.Generator().manual_seed(80)
    data = [dict(x=torch.randn(6, 48, 6, generator=g), volume=50 + 100 * torch.rand(6, 48, generator=g), y=torch.randint(0, 3, (6,), generator=g)) for _ in range(11)]
    data[6]["volume"][4] = 6000.0
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-2))
