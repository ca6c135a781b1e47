"""Deep supervision: the losses of the two auxiliary heads are collected with torch.tensor([...]).mean() instead of torch.stack. Their sum is in the
logged total, but a number trains nothing: both heads stay as initialised."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1207_aux_losses_collected_in_tensor", source="constructed", symptom="silent", phase="loss",
             cause="detached_graph", op=None, module="aux.0", module_also=["aux.1"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             tensors=["aux.0.weight", "aux.1.weight"], named=dict(kind="no_grad", names=["aux.0.weight", "aux.1.weight"]),
             static_visible=dict(source="yes: torch.tensor() of losses", objects="no"),
             quality_limit=0.9, margin=1.4, fixes_that_work=["stack"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"stack"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList([nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 32)])
        s.aux, s.head = nn.ModuleList(nn.Linear(32, 4) for _ in range(2)), nn.Linear(32, 4)

    def forward(s, x):
        out = []
        for k, l in enumerate(s.layers):
            x = torch.relu(l(x))
            out.append((s.aux[k] if k < 2 else s.head)(x))
        return out


def signal(case, i, r):
    """parameters of the optimizer without any gradient"""
    return bool(r) and not r.grads["aux.0.weight"] and bool(r.grads["head.weight"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Net(), S.cat(S.classes(16, seed=99))

    def loss_fn(m, b):
        *aux, z = m(b["x"])
        terms = [F.cross_entropy(a, b["y"]) for a in aux]
        extra = torch.stack(terms).mean() if fix else torch.tensor([float(t.detach()) for t in terms]).mean()  # <-- origin
        return F.cross_entropy(z, b["y"]) + 0.5 * extra

    def quality(c):                                # mean cross-entropy over the three exits
        return S.in_eval(m, lambda: sum(F.cross_entropy(z, test["y"]) for z in m(test["x"])) / 3)

    return SCase(m, loss_fn, S.classes(60), torch.optim.Adam(m.parameters(), lr=5e-3), quality=quality)
