"""Hierarchical attention: words are pooled into sentences by a masked softmax, sentences into a document. The splitter produced a
sentence without a word: its whole row is -inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="916_document_with_an_empty_sentence", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="forward", cause="masked_softmax_row", op="softmax", module="word_att", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[0, 2], fixes_that_work=["finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"finfo_min"}


class Pool(nn.Module):
    neg = float("-inf")

    def __init__(s, d):
        super().__init__()
        s.key, s.query = nn.Linear(d, d), nn.Parameter(torch.randn(d) / d ** 0.5)

    def forward(s, h, mask):
        score = torch.tanh(s.key(h)) @ s.query
        w = score.masked_fill(~mask, s.neg).softmax(-1)  # <-- origin
        return (w[..., None] * h).sum(-2)


class HAN(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.word_att, s.sent, s.sent_att, s.out = nn.Embedding(50, 16), Pool(16), nn.Linear(16, 16), Pool(16), nn.Linear(16, 4)

    def forward(s, ids):
        h = s.word_att(s.emb(ids), ids != 0)
        h = torch.tanh(s.sent(h))
        return s.out(s.sent_att(h, torch.ones(h.shape[:2], dtype=torch.bool)))


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]), b["y"])


def make(seed=0, fix=None):
    m, g = HAN(), torch.Generator().manual_seed(16)
    m.word_att.neg = -1e9 if fix else float("-inf")
    data = []
    for _ in range(11):
        ids = torch.randint(1, 50, (4, 5, 8), generator=g)
        n = torch.randint(2, 9, (4, 5), generator=g)
        ids[torch.arange(8)[None, None] >= n[..., None]] = 0
        data.append(dict(ids=ids, y=torch.randint(0, 4, (4,), generator=g)))
    data[7]["ids"][0, 3] = 0
    data[7]["ids"][2, 0] = 0
    return Case(m, loss_fn, data, B.adam(m))
