"""CONTROL: cross-entropy clamps the log after it was taken, which gives NaN in backward at probabilities of exactly 0; they come out of a hard
sigmoid, whose derivative there is a selected 0 and not a product, so the NaN never reaches a parameter."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="690_control_hard_sigmoid_swallows_the_nan", source="written for this set: hardsigmoid_backward selects, it does not multiply", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(9, 16), nn.Linear(16, 3)

    def forward(self, x):
        return F.hardsigmoid(self.fc2(F.relu(self.fc1(x))))


def loss_fn(m, b):
    p = m(b["x"])
    pos, neg = p.log().clamp(min=-20.0), (1 - p).log().clamp(min=-20.0)
    return -(b["y"] * pos + (1 - b["y"]) * neg).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Gate(), torch.Generator().manual_seed(8)
    data = []
    for i in range(10):
        x = torch.randn(6, 9, generator=g)
        if i in (3, 4, 7):
            x[i % 6] *= 40.0
        data.append(dict(x=x, y=(x[:, :3] > 0).float()))
    return Case(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=2e-3))
