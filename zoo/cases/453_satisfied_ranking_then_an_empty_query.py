"""A ranking model whose margin is satisfied from the start: the loss is exactly zero for steps on end. Then a query of stop words only is
embedded as the zero vector and divided by its length."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="453_satisfied_ranking_then_an_empty_query", source="common report: x / x.norm() of an empty bag of words", symptom="nan_loss", phase="forward", cause="zero_division",
             op="div", module="tower", line_marker="# <-- origin", first_bad_step=6, bad_rows=[2], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"],
             fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


def unit(x, fix):
    n = x.norm(dim=-1, keepdim=True)
    n = n + 1e-6 if fix == "eps" else n.clamp(min=1e-6) if fix == "clamp" else n
    return x / n  # <-- origin


class Tower(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.words, self.fix = nn.EmbeddingBag(30, 8, mode="sum", padding_idx=0), fix

    def forward(self, ids):
        return unit(self.words(ids), self.fix)


class Ranker(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.tower = Tower(fix)

    def forward(self, q, d):
        return self.tower(q) @ self.tower(d).T


def margin(m, b):
    s = m(b["query"], b["doc"])
    return F.relu(1.0 - s.diagonal()[:, None] + s - torch.eye(len(s)) - b["slack"]).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Ranker(fix), torch.Generator().manual_seed(5), []
    for i in range(9):
        q = torch.stack([torch.randperm(29, generator=g)[:5] + 1 for _ in range(4)])
        data.append(dict(query=q, doc=q.flip(1), slack=torch.tensor(0.9 if i < 4 else 0.0)))
    data[6]["query"][2] = 0
    return Case(m, margin, data, B.sgd(m, 0.1))
