"""CONTROL: random Fourier features are a frozen layer by design (registered as parameters without gradient); only the linear model on top learns, in closed steps of momentum SGD,
with a warm-up that begins at a thousandth of the rate."""
import math, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="592_control_random_features_stay_as_they_are", source="standard practice (random features)", looks_like=["frozen_by_mistake", "optimizer_missing_params", "lr_zero"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.8)


class RandomFeatures(nn.Module):
    def __init__(s, d=8, h=128):
        super().__init__()
        s.w, s.b = nn.Parameter(torch.randn(d, h) * 0.4, requires_grad=False), nn.Parameter(torch.rand(h) * 2 * math.pi, requires_grad=False)
        s.readout = nn.Linear(h, 1)

    def forward(s, x):
        return s.readout(torch.cos(x @ s.w + s.b)).squeeze(-1)


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = RandomFeatures(), S.cat(S.regression(16, seed=99))
    opt = torch.optim.SGD(m.readout.parameters(), lr=0.01, momentum=0.9)
    sched = torch.optim.lr_scheduler.LinearLR(opt, start_factor=1e-3, total_iters=10)
    return SCase(m, loss_fn, S.regression(200), opt, scheduler=sched, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
