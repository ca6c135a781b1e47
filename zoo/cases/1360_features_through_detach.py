"""The features go into a memory bank as .detach(), and by mistake the classifier is fed from the detached copy: the encoder
never learns."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1360_features_through_detach", source="commonly reported; no link was looked up",
             symptom="silent", phase="backward", cause="no_trainable_grad", op=None, module="encoder", module_also=["encoder.0", "encoder.2"], line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["keep_tensor"], fixes_that_do_not=["lr_down", "clip"])
FIXES = {"keep_tensor"}


class Net(nn.Module):
    keep = False

    def __init__(s):
        super().__init__()
        s.encoder, s.cls = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 8)), nn.Linear(8, 4)
        s.register_buffer("bank", torch.zeros(6, 8))

    def forward(s, x):
        f = s.encoder(x)
        if not s.keep:
            f = f.detach()
        s.bank.copy_(f.detach())
        return s.cls(f)


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(30)
    m.keep = bool(fix)
    data = [dict(x=torch.randn(6, 10, generator=g), y=torch.randint(0, 4, (6,), generator=g)) for _ in range(9)]
    return Case(m, loss_fn, data, B.adam(m), healthy=lambda log: all(r.loss_ok and all(g for n, g in r.grads.items()) for r in log))
