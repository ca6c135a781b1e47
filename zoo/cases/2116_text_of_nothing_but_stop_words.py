"""Word vectors weighted by inverse document frequency, the weights scaled to sum to one. "Not that it was" holds only stop words, whose weight is zero."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2116_text_of_nothing_but_stop_words", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="bag", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[1, 6], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "clamp"}


class WeightedBag(nn.Module):
    def __init__(s, fix, words=60, d=16):
        super().__init__()
        s.table, s.fix = nn.Embedding(words, d), fix
        idf = torch.log(torch.linspace(1.0, 40.0, words))
        idf[:8] = 0.0
        s.register_buffer("idf", idf)

    def forward(s, ids):
        w = s.idf[ids]
        total = w.sum(1, keepdim=True)
        if s.fix == "eps":
            total = total + 1e-6
        if s.fix == "clamp":
            total = total.clamp(min=1e-6)
        w = w / total  # <-- origin
        return (w[..., None] * s.table(ids)).sum(1)


class Classifier(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.bag, s.head = WeightedBag(fix), B.mlp(16, 24, 3)

    def forward(s, ids):
        return s.head(s.bag(ids))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Classifier(fix)
    g = torch.Generator().manual_seed(38)
    data = [dict(ids=torch.cat([torch.randint(0, 60, (8, 4), generator=g), torch.randint(8, 60, (8, 1), generator=g)], 1), y=torch.randint(0, 3, (8,), generator=g)) for _ in range(10)]
    data[7]["ids"][1] = torch.tensor([2, 5, 1, 7, 0])
    data[7]["ids"][6] = torch.tensor([3, 3, 4, 6, 2])
    return Case(m, lambda m, b: F.cross_entropy(m(b["ids"]), b["y"]), data, B.adam(m, 3e-3))
