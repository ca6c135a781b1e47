"""The auxiliary loss is added as .item() ('for logging'): the total falls, but the auxiliary head never learns."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1107_aux_loss_item", source="constructed from the pattern loss = main + w * aux.item()", symptom="silent", phase="loss",
             cause="detached_graph", op=None, module="side", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: .item() inside the loss", objects="yes: trainable head without gradient"),
             named=dict(kind="no_grad", names=["side.weight", "side.bias"]),
             quality_limit=0.5, margin=1.8, fixes_that_work=["no_item"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"no_item"}


class TwoHeads(nn.Module):
    def __init__(s):
        super().__init__()
        s.trunk = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        s.cls, s.side = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(s, x):
        h = s.trunk(x)
        return s.cls(h), s.side(h)[:, 0]


def signal(case, i, r):
    return bool(r) and r.stepped and not r.grads["side.weight"]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = TwoHeads()

    def with_radius(batches):
        for b in batches:
            b["r"] = b["x"].norm(dim=1) - 3.5
        return batches

    test = S.cat(with_radius(S.classes(16, seed=99)))

    def loss_fn(m, b):
        z, r = m(b["x"])
        main, aux = F.cross_entropy(z, b["y"]), F.mse_loss(r, b["r"])
        return main + 0.5 * (aux if fix else aux.item())  # <-- origin

    def quality(c):
        return S.in_eval(m, lambda: F.mse_loss(m(test["x"])[1], test["r"]))

    return SCase(m, loss_fn, with_radius(S.classes(80)), torch.optim.Adam(m.parameters(), lr=1e-2), quality=quality)
