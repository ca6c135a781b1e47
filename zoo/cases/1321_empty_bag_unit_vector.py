"""A bag of words is averaged and scaled to length 1 by hand; a title of nothing but padding is the zero vector: 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1321_empty_bag_unit_vector", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="tower.unit", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[5], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class Unit(nn.Module):
    eps = 0.0

    def forward(s, x):
        n = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / (n + s.eps)  # <-- origin


class Tower(nn.Module):
    def __init__(s):
        super().__init__()
        s.words, s.proj, s.unit = nn.EmbeddingBag(60, 16, padding_idx=0, mode="mean"), nn.Linear(16, 16, bias=False), Unit()

    def forward(s, ids):
        return s.unit(s.proj(s.words(ids)))


class Search(nn.Module):
    def __init__(s):
        super().__init__()
        s.tower, s.label = Tower(), nn.Linear(16, 5)

    def forward(s, ids):
        return s.label(s.tower(ids))


def loss_fn(m, b):
    return F.cross_entropy(m(b["title"]), b["y"])


def make(seed=0, fix=None):
    m, g = Search(), torch.Generator().manual_seed(12)
    m.tower.unit.eps = 1e-6 if fix else 0.0
    data = [dict(title=torch.randint(1, 60, (6, 7), generator=g), y=torch.randint(0, 5, (6,), generator=g)) for _ in range(11)]
    data[7]["title"][5] = 0
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
