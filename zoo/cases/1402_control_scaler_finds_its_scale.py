"""CONTROL: GradScaler starts at 2**19, the first gradients overflow, it skips those steps and halves the scale: normal life."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1402_control_scaler_finds_its_scale", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[],
             source="standard practice")


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv, s.fc1, s.fc2 = nn.Conv2d(1, 8, 3), nn.Linear(8, 24), nn.Linear(24, 4)

    def forward(s, x):
        return s.fc2(F.gelu(s.fc1(F.gelu(s.conv(x)).mean([2, 3]))))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]).float(), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(2)
    data = []
    for _ in range(16):
        y = torch.randint(0, 4, (8,), generator=g)
        data.append(dict(x=torch.randn(8, 1, 8, 8, generator=g) + y[:, None, None, None], y=y))
    return Case(m, loss_fn, data, B.adam(m, 5e-3), autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=2.0 ** 19),
                healthy=lambda log: log[0].skipped and sum(r.stepped for r in log) >= 12)
