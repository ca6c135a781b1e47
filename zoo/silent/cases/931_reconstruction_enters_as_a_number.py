"""Classifier with a reconstruction head; `loss = ce + 0.5 * rec.item()`: the sum that is logged is right, the reconstruction head never learns."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="931_reconstruction_enters_as_a_number", source="constructed", symptom="silent", phase="loss", cause="detached_graph", op=None, module="rebuild", bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, tensors=["rebuild.weight", "rebuild.bias"], static_visible=dict(source="yes: .item() inside a loss", objects="no"),
             named=dict(kind="no_grad", names=["rebuild.weight", "rebuild.bias"]), quality_limit=0.9, margin=1.5, fixes_that_work=["tensor"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"tensor"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.head, s.rebuild = nn.Linear(12, 32), nn.Linear(32, 4), nn.Linear(32, 12)

    def forward(s, x):
        h = F.relu(s.body(x))
        return s.head(h), s.rebuild(h)


def signal(case, i, r):
    return bool(r) and r.stepped and not r.grads["rebuild.weight"]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Net(), S.cat(S.classes(16, seed=99))

    def loss_fn(m, b):
        out, back = m(b["x"])
        rec = F.mse_loss(back, b["x"])
        return F.cross_entropy(out, b["y"]) + 0.5 * (rec if fix else rec.item())  # <-- origin

    return SCase(m, loss_fn, S.classes(150), torch.optim.Adam(m.parameters(), lr=1e-2), quality=lambda c: S.in_eval(m, lambda: F.mse_loss(m(test["x"])[1], test["x"])))
