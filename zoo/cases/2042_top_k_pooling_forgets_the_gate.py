"""Graph top-k pooling picks nodes by a learned score but never multiplies by it: the score gets no gradient and never learns."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2042_top_k_pooling_forgets_the_gate", source="written for the unseen set, no public report",
             symptom="silent", phase="backward", cause="no_trainable_grad", op=None, module="pool.score", module_also=["pool"], line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["gate", "straight_through"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"gate", "straight_through"}


class TopK(nn.Module):
    def __init__(s, d, k, fix):
        super().__init__()
        s.score, s.k, s.fix = nn.Linear(d, 1), k, fix

    def forward(s, x):
        w = s.score(x).squeeze(-1)
        keep = w.topk(s.k, -1).indices  # <-- origin
        y = x.gather(1, keep[..., None].expand(-1, -1, x.shape[-1]))
        if s.fix == "gate":
            y = y * torch.tanh(w.gather(1, keep))[..., None]
        if s.fix == "straight_through":
            p = torch.softmax(w, -1).gather(1, keep)
            y = y * (1 + p - p.detach())[..., None]
        return y


class Net(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.embed, s.pool, s.out = nn.Linear(4, 12), TopK(12, 3, fix), nn.Linear(12, 2)

    def forward(s, x):
        return s.out(s.pool(torch.relu(s.embed(x))).mean(1))


def healthy(log):
    return all((r.grads["pool.score.weight"] or 0) > 0 for r in log)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net(fix)
    g = torch.Generator().manual_seed(79)
    data = [dict(x=torch.randn(6, 8, 4, generator=g), y=torch.randint(0, 2, (6,), generator=g)) for _ in range(12)]
    return Case(m, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), data, B.adam(m, 1e-3), healthy=healthy)
