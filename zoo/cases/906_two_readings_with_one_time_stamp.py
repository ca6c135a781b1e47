"""An irregular series is resampled by linear interpolation inside the model: (t - t0) / (t1 - t0). One logger wrote two readings with
the same time stamp, and the grid point falls between them: 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="906_two_readings_with_one_time_stamp", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="front.resample", line_marker="# <-- origin",
             first_bad_step=8, bad_rows=[5], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class Resample(nn.Module):
    eps = 0.0

    def forward(s, t, v, grid):
        hi = torch.searchsorted(t, grid.expand(len(t), -1).contiguous()).clamp(1, t.shape[1] - 1)
        t0, t1, v0, v1 = t.gather(1, hi - 1), t.gather(1, hi), v.gather(1, hi - 1), v.gather(1, hi)
        gap = t1 - t0
        if s.eps:
            gap = gap.clamp_min(s.eps)
        w = (grid - t0) / gap  # <-- origin
        return v0 + w * (v1 - v0)


class Front(nn.Module):
    def __init__(s):
        super().__init__()
        s.resample, s.gain = Resample(), nn.Parameter(torch.ones(1))

    def forward(s, t, v, grid):
        return s.gain * s.resample(t, v, grid)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.front, s.conv, s.out = Front(), nn.Conv1d(1, 8, 3, padding=1), nn.Linear(8, 1)

    def forward(s, t, v):
        y = s.front(t, v, torch.arange(9.0))
        return s.out(F.relu(s.conv(y[:, None])).amax(-1))


def loss_fn(m, b):
    return F.huber_loss(m(b["t"], b["v"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(6)
    m.front.resample.eps = 1e-3 if fix else 0.0
    data = []
    for _ in range(12):
        t = torch.arange(10.0)[None] - 0.5 + 0.3 * torch.rand(6, 10, generator=g)
        data.append(dict(t=t, v=torch.randn(6, 10, generator=g), y=torch.randn(6, 1, generator=g)))
    t = data[8]["t"][5]
    t[0], t[1] = 0.0, 0.0                           # both at the first grid point
    return Case(m, loss_fn, data, B.adam(m))
