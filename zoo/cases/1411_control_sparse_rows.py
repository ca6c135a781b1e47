"""CONTROL: sparse embedding gradients: most rows are untouched in any one step, as they should be."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1411_control_sparse_rows", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[],
             source="standard practice")


class Bag(nn.Module):
    def __init__(s):
        super().__init__()
        s.words, s.cls = nn.EmbeddingBag(500, 12, mode="mean", sparse=True), nn.Linear(12, 3)

    def forward(s, ids):
        return s.cls(s.words(ids))


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]), b["y"])


def make(seed=0, fix=None):
    m, g = Bag(), torch.Generator().manual_seed(5)
    data = [dict(ids=torch.randint(0, 500, (6, 5), generator=g), y=torch.randint(0, 3, (6,), generator=g)) for _ in range(12)]
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.1))
