"""Temperatures in Kelvin go into the network as they are. The first layer moves by lr times 290 per weight: after a few steps of SGD every ReLU of fc1 is off
for every input and only the output bias goes on learning."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1219_kelvin_inputs_kill_relu", source="constructed", symptom="silent", phase="forward",
             cause="dead_relu", op="relu", module="act", module_also=["fc1"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=10,
             static_visible=dict(source="no", objects="no: hint from the data (mean 290, spread 10)"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["standardise"], fixes_that_do_not=["lr_up", "longer"])
FIXES = {"standardise"}


class Net(nn.Module):
    def __init__(s, d=8, h=32):
        super().__init__()
        s.fc1, s.act, s.head = nn.Linear(d, h), nn.ReLU(), nn.Linear(h, 1)

    def forward(s, x):
        return s.head(s.act(s.fc1(x)))[:, 0]


def signal(case, i, r):
    """no unit of the hidden layer is on for any row of the batch"""
    if i < 10:
        return False
    with torch.no_grad():
        return not bool((case.model.fc1(case.batches[i]["x"]) > 0).any())


def loss_fn(m, b):
    return F.smooth_l1_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, kelvin = Net(), dict(shift=290.0, scale=10.0)
    data, test = S.regression(80, **kelvin), S.cat(S.regression(16, seed=99, **kelvin))
    if fix:
        for b in data + [test]:
            b["x"] = (b["x"] - 290.0) / 10.0
    opt = torch.optim.SGD(m.parameters(), lr=0.05)  # <-- origin
    return SCase(m, loss_fn, data, opt, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
