"""Mixture of experts with sigmoid routing: the top-2 scores are divided by their sum; a token that no expert wants has
scores of exactly 0 and gets 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1369_router_scores_all_zero", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="layers.1.router", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class Router(nn.Module):
    eps = 0.0

    def __init__(s, d, e):
        super().__init__()
        s.gate = nn.Linear(d, e)

    def forward(s, x, bias):
        w, idx = torch.sigmoid(s.gate(x) + bias).topk(2, -1)
        return w / (w.sum(-1, keepdim=True) + s.eps), idx  # <-- origin


class MoE(nn.Module):
    def __init__(s, d=16, e=4):
        super().__init__()
        s.router, s.experts = Router(d, e), nn.ModuleList(nn.Linear(d, d) for _ in range(e))

    def forward(s, x, bias):
        w, idx = s.router(x, bias)
        y = torch.stack([ex(x) for ex in s.experts], -2)
        return x + torch.tanh((w[..., None] * y.gather(-2, idx[..., None].expand(*idx.shape, x.shape[-1]))).sum(-2))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.tok, s.layers, s.out = nn.Embedding(24, 16), nn.ModuleList(MoE() for _ in range(2)), nn.Linear(16, 24)

    def forward(s, ids, bias):
        x = s.tok(ids)
        for k, l in enumerate(s.layers):
            x = l(x, bias[:, :, None] if k else torch.zeros(()))
        return s.out(x)


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"], b["bias"])[:, :-1].flatten(0, 1), b["ids"][:, 1:].flatten())


def make(seed=0, fix=None):
    m = Net()
    for l in m.layers:
        l.router.eps = 1e-9 if fix else 0.0
    data = [dict(ids=b["ids"], bias=torch.zeros(4, 12)) for b in B.lm_data(10, V=24)]
    data[6]["bias"][0, 7] = -140.0                # expert-choice penalty for an overloaded bucket
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
