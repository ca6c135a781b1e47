"""CONTROL: a pure fp16 model with a fixed loss scale: the scaled loss of one hard batch is above 65504 and prints as inf, but a gradient does
not depend on the value of the loss: all gradients are finite and right."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="689_control_scaled_loss_overflows_but_not_its_gradient", source="common confusion with static loss scaling", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(10, 24), nn.Tanh()), nn.Linear(24, 8)

    def forward(self, x):
        return self.head(self.body(x))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net().half(), torch.Generator().manual_seed(31)

    def loss_fn(m, b):
        return F.cross_entropy(m(b["x"].half()) * b["inv_temp"].half(), b["y"])

    data = [{"x": torch.randn(8, 10, generator=g), "y": torch.randint(0, 8, (8,), generator=g), "inv_temp": torch.ones(8, 1)} for _ in range(12)]
    data[5]["inv_temp"] *= 12.0
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9), static_scale=16384.0)
