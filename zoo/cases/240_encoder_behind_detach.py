"""A .detach() left over from a probing experiment cuts the encoder off: the head learns, the encoder is in the optimizer, requires
grad and never receives any."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="240_encoder_behind_detach", source="common report: forgotten detach() or no_grad() in forward",
             symptom="silent", phase="backward", cause="no_trainable_grad", op=None, op_also=["detach"], module="encoder", module_also=["", "encoder.conv", "encoder.bn"], line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["no_detach"], fixes_that_do_not=["lr_down", "clip", "skip_batch", "zero_nan_grads"])
FIXES = {"no_detach"}


class Encoder(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv, s.bn = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)

    def forward(s, x):
        return F.relu(s.bn(s.conv(x))).mean([2, 3])


class Net(nn.Module):
    fix = None

    def __init__(s):
        super().__init__()
        s.encoder, s.head = Encoder(), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(s, x):
        z = s.encoder(x)
        if s.fix != "no_detach":
            z = z.detach()  # <-- origin
        return s.head(z)


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(3)
    m.fix = fix
    data = [dict(x=torch.randn(8, 1, 6, 6, generator=g), y=torch.randint(0, 3, (8,), generator=g)) for _ in range(9)]
    return Case(m, loss_fn, data, B.adam(m), healthy=lambda log: all(g for n, g in log[-1].grads.items() if n.startswith("encoder") and "conv.bias" not in n))
