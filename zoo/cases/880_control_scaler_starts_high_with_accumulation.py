"""CONTROL: GradScaler starts at 2^17 and skips its first steps while gradients are accumulated and clipped: normal life of a scaler."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="880_control_scaler_starts_high_with_accumulation", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[], nonfinite_in_passing=True)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.c1, s.c2, s.head = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.Linear(12, 4)

    def forward(s, x):
        return s.head(F.relu(s.c2(F.relu(s.c1(x)))).mean([2, 3]))


def loss_fn(m, b):
    return 20 * F.cross_entropy(m(b["x"]).float(), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(80)
    data = [dict(x=torch.randn(6, 3, 8, 8, generator=g), y=torch.randint(0, 4, (6,), generator=g)) for _ in range(20)]
    return Case(m, loss_fn, data, B.adam(m), autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=2.0 ** 17), accumulation=2, clip_norm=1.0,
                healthy=lambda log: log[1].skipped and log[-1].stepped and all(r.loss_ok for r in log))
