"""CONTROL: two tasks take turns, one with a loss of hundreds and one of a few hundredths, with sum reduction over ragged lengths."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="493_control_alternating_tasks_of_unequal_scale", source="standard practice (multi-task training)", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.depth, self.label = nn.Sequential(nn.Linear(8, 16), nn.GELU()), nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, x):
        return self.trunk(x)


def loss_fn(m, b):
    h = m(b["x"])
    if b["task"] == "depth":
        return F.mse_loss(m.depth(h), b["y"], reduction="sum")
    return 0.05 * F.cross_entropy(m.label(h), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Two(), torch.Generator().manual_seed(4), []
    for i in range(16):
        n = int(torch.randint(2, 24, (1,), generator=g))
        x = torch.randn(n, 8, generator=g)
        # the first five steps know only the small task
        if i < 5 or i % 2 == 0:
            data.append(dict(task="label", x=x, y=(x[:, 0] > 0).long() + (x[:, 1] > 0).long()))
        else:
            data.append(dict(task="depth", x=x, y=4 * x[:, :1] + 3))
    return Case(m, loss_fn, data, B.adam(m, 1e-3), clip_norm=1.0)
