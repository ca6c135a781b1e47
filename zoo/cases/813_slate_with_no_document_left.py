"""Listwise ranking: log_softmax over the scores of the documents of a query, padding at -inf; the relevance filter left one query of
the batch with no document at all."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="813_slate_with_no_document_left", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="loss", cause="masked_softmax_row", op="log_softmax", op_also=["softmax"], module=None, line_marker="# <-- origin",
             first_bad_step=8, bad_rows=[2], fixes_that_work=["finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"finfo_min"}


class Scorer(nn.Module):
    def __init__(s):
        super().__init__()
        s.net, s.out = B.mlp(6, 24, 24, nn.ReLU), nn.Linear(24, 1)

    def forward(s, docs):
        return s.out(F.relu(s.net(docs))).squeeze(-1)


def make(seed=0, fix=None):
    m = Scorer()

    def loss_fn(m, b):
        pad = torch.arange(b["docs"].shape[1])[None] >= b["n"][:, None]
        score = m(b["docs"]).masked_fill(pad, -1e9 if fix else float("-inf"))
        logp = torch.log_softmax(score, -1)  # <-- origin
        return -(b["w"] * logp.gather(1, b["click"][:, None]).squeeze(1)).mean()

    g = torch.Generator().manual_seed(93)
    data = []
    for i in range(12):
        n = torch.randint(2, 8, (5,), generator=g)
        data.append(dict(docs=torch.randn(5, 7, 6, generator=g), n=n, click=(torch.rand(5, generator=g) * n).long(), w=0.5 + torch.rand(5, generator=g)))
    data[8]["n"][2], data[8]["click"][2] = 0, 0
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
