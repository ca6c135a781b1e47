"""CONTROL: per-class recall is logged from inside the loss function; for a class that is absent from the batch it is 0/0 = NaN, and nobody trains on it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="882_control_recall_of_an_absent_class_is_logged", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Seg(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc, s.dec, s.history = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 5, 1), []

    def forward(s, x):
        return s.dec(F.relu(s.enc(x)))


def loss_fn(m, b):
    lg = m(b["x"])
    with torch.no_grad():
        hit = lg.argmax(1) == b["y"]
        recall = torch.stack([(hit & (b["y"] == k)).sum() / (b["y"] == k).sum() for k in range(5)])
        m.history.append(recall)
    return F.cross_entropy(lg, b["y"])


def make(seed=0, fix=None):
    m, g = Seg(), torch.Generator().manual_seed(82)
    data = [dict(x=torch.randn(4, 1, 8, 8, generator=g), y=torch.randint(0, 5 - (i % 3), (4, 8, 8), generator=g)) for i in range(12)]
    return Case(m, loss_fn, data, B.adam(m, 3e-3), healthy=lambda log: any(bool(h.isnan().any()) for h in m.history) and all(r.loss_ok and r.grad_ok for r in log))
