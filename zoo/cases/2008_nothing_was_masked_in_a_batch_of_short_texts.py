"""Masked language modelling on selected positions: fifteen percent of very short texts came out as no masked token at all."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2008_nothing_was_masked_in_a_batch_of_short_texts", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="loss", cause="empty_reduction", op="nll_loss_forward", op_also=["nll_loss", "cross_entropy", "cross_entropy_loss", "mean", "nll_loss_nd"], module=None,
             line_marker="# <-- origin", first_bad_step=6, bad_rows=None, fixes_that_work=["skip_batch", "guard"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"guard"}


class Bert(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.pos = nn.Embedding(40, 32), nn.Parameter(torch.randn(10, 32) * 0.02)
        s.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False)
        s.out = nn.Linear(32, 40)

    def forward(s, ids):
        return s.out(s.encoder(s.embed(ids) + s.pos[: ids.shape[1]]))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Bert()

    def loss_fn(m, b):
        logits = m(b["ids"].masked_fill(b["pick"], 1))
        total = F.cross_entropy(logits[b["pick"]], b["ids"][b["pick"]], reduction="sum")
        if fix == "guard":
            return total / b["pick"].sum().clamp(min=1)
        return F.cross_entropy(logits[b["pick"]], b["ids"][b["pick"]])  # <-- origin

    g = torch.Generator().manual_seed(2)
    data = []
    for k in range(10):
        t = 3 if k == 6 else 10
        pick = torch.rand(6, t, generator=g) < 0.2
        pick[0, 0] = True
        if k == 6:
            pick[:] = False
        data.append(dict(ids=torch.randint(2, 40, (6, t), generator=g), pick=pick))
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
