"""CONTROL: the auxiliary head of deep supervision is used for six steps only; afterwards it gets no gradient, on purpose, and the loss falls by its share."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="885_control_deep_supervision_is_switched_off", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class UNet(nn.Module):
    aux_on = True

    def __init__(s):
        super().__init__()
        s.down, s.mid, s.up, s.out = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 1, 1)
        s.aux = nn.Conv2d(8, 1, 1)

    def forward(s, x):
        h = F.relu(s.down(x))
        mid = F.relu(s.mid(h))
        return s.out(F.relu(s.up(h + mid))), s.aux(mid) if s.aux_on else None


def loss_fn(m, b):
    y, aux = m(b["x"])
    loss = F.binary_cross_entropy_with_logits(y, b["y"])
    return loss if aux is None else loss + F.binary_cross_entropy_with_logits(aux, b["y"])


def make(seed=0, fix=None):
    m, g = UNet(), torch.Generator().manual_seed(85)
    data = []
    for _ in range(14):
        x = torch.randn(4, 1, 8, 8, generator=g)
        data.append(dict(x=x, y=(x > 0.3).float()))

    def before(case, i):
        case.model.aux_on = i < 6

    return Case(m, loss_fn, data, B.adam(m, 3e-3), before_step=before, healthy=lambda log: log[-1].grads["aux.weight"] is None and log[-1].loss < log[0].loss)
