"""Span classification pools hidden[start:end]; a broken annotation has end < start, the slice is empty and its mean is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2007_span_that_ends_before_it_starts", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="empty_reduction", op="mean", module="", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[2], fixes_that_work=["guard", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"guard"}


class Tagger(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.lm, s.head, s.fix = B.TinyLM(), nn.Linear(32, 5), fix

    def forward(s, ids, span):
        h = s.lm.hidden(ids)
        pooled = []
        for k in range(len(ids)):
            a, e = int(span[k, 0]), int(span[k, 1])
            if s.fix == "guard":
                e = max(e, a + 1)
            pooled.append(h[k, a:e].mean(0))  # <-- origin
        return s.head(torch.stack(pooled))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Tagger(fix)
    g = torch.Generator().manual_seed(8)
    data = []
    for b in B.lm_data(9, bs=5):
        a = torch.randint(0, 6, (5,), generator=g)
        data.append(dict(ids=b["ids"], span=torch.stack([a, a + torch.randint(1, 5, (5,), generator=g)], 1), y=torch.randint(0, 5, (5,), generator=g)))
    data[5]["span"][2] = torch.tensor([7, 3])
    return Case(m, lambda m, b: F.cross_entropy(m(b["ids"], b["span"]), b["y"]), data, B.adam(m, 1e-3))
