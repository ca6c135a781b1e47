"""Two-tower retrieval masks accidental hits among the in-batch negatives with -inf, the diagonal too, and puts the positive back only for items
seen once; a flash sale fills a batch with one item and every logit is -inf."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2017_in_batch_negatives_are_all_the_same_item", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="loss", cause="masked_softmax_row", op="_log_softmax", op_also=["log_softmax"], module=None,
             line_marker="# <-- origin", first_bad_step=5, bad_rows=None, fixes_that_work=["finfo_min", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"finfo_min"}


class Towers(nn.Module):
    def __init__(s):
        super().__init__()
        s.query, s.item = nn.EmbeddingBag(50, 16, mode="sum"), nn.Embedding(80, 16)

    def forward(s, words, item):
        return s.query(words) @ s.item(item).T / 4


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Towers()

    def loss_fn(m, b):
        s, item = m(b["words"], b["item"]), b["item"]
        same = item[:, None] == item[None]
        once = same.sum(1) == 1
        hide = same & ~(torch.eye(len(item), dtype=torch.bool) & once[:, None])
        s = s.masked_fill(hide, torch.finfo(s.dtype).min if fix == "finfo_min" else float("-inf"))
        lp = torch.log_softmax(s, -1)  # <-- origin
        keep = once if bool(once.any()) else torch.ones_like(once)
        return -lp.diagonal()[keep].clamp(min=-50).mean()

    g = torch.Generator().manual_seed(31)
    data = [dict(words=torch.randint(0, 50, (6, 4), generator=g), item=torch.randperm(80, generator=g)[:6]) for _ in range(9)]
    data[5]["item"][:] = 17
    return Case(m, loss_fn, data, B.adam(m, 1e-2))
