"""CONTROL: GradScaler starts far too high, skips a few overflowing steps while it halves its scale, and then trains."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="282_control_scaler_finds_its_scale", source="https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv, s.fc = nn.Conv2d(1, 8, 3), nn.Linear(8, 4)

    def forward(s, x):
        return s.fc(F.relu(s.conv(x)).mean([2, 3]))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]).float(), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(3)
    data = [dict(x=torch.randn(6, 1, 8, 8, generator=g), y=torch.randint(0, 4, (6,), generator=g)) for _ in range(14)]
    return Case(m, loss_fn, data, B.adam(m), autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=2.0 ** 20),
                healthy=lambda log: log[0].skipped and not log[-1].skipped and sum(r.skipped for r in log) <= 4)
