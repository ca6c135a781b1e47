"""A tower of eight sigmoid layers (each output is to be read as a code) without residual or norm: the derivative loses a factor of six or more per layer, the first layers get
less than a hundred-thousandth of the head's gradient, and the tower's output is the same for all inputs."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="531_codes_through_eight_sigmoids", source="constructed: sigmoid tower", symptom="silent", phase="backward", cause="vanishing_gradient", op=None, module="tower.0", module_also=["tower.1", "tower.2"], bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, tensors=["tower.0.weight", "tower.1.weight"],
             static_visible=dict(source="no: eight sigmoids in a row are a hint", objects="no: one backward shows it"),
             named=dict(kind="tiny_grad", names=["tower.0.weight", "tower.1.weight"]),
             quality_limit=0.9, margin=1.4, fixes_that_work=["relu", "residual"], fixes_that_do_not=["lr_up", "lr_down", "clip"])
FIXES = {"relu", "residual"}


class Coder(nn.Module):
    def __init__(s, kind):
        super().__init__()
        s.kind, s.stem = kind, nn.Linear(12, 24)
        s.tower = nn.ModuleList(nn.Linear(24, 24) for _ in range(8))
        s.head = nn.Linear(24, 4)
        if kind == "relu":
            for l in s.tower:
                nn.init.kaiming_normal_(l.weight, nonlinearity="relu")

    def forward(s, x):
        x = s.stem(x)
        for l in s.tower:
            if s.kind == "relu":
                x = torch.relu(l(x))
            elif s.kind == "residual":
                x = x + 0.5 * (torch.sigmoid(l(x)) - 0.5)
            else:
                x = torch.sigmoid(l(x))  # <-- origin
        return s.head(x)


def signal(case, i, r):
    """first layer of the tower below 1e-4 of the last, both of one shape"""
    return bool(r) and r.stepped and r.grads["tower.0.weight"] < 1e-4 * r.grads["tower.7.weight"]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Coder(fix), S.cat(S.classes(16, seed=99))
    return SCase(m, S.ce, S.classes(120), torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9), quality=lambda c: S.heldout_ce(m, test))
