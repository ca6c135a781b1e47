"""Short sequences padded to the longest of the batch, cross_entropy without ignore_index: three quarters of the targets are the padding token. The loss is small soon,
and the model puts padding after everything."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="1116_padding_counts_in_loss", source="constructed from the pattern cross_entropy on padded targets without ignore_index", symptom="silent", phase="loss",
             cause="padding_in_loss", op="cross_entropy", module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="yes: no ignore_index although the collator pads", objects="yes: attention_mask is 0 where labels are counted"),
             quality_limit=0.15, margin=3.0, fixes_that_work=["ignore_index", "labels_minus_100"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"ignore_index", "labels_minus_100"}
PAD = 0


def batches(n, seed=0):
    g = torch.Generator().manual_seed(300 + seed)
    out = B.lm_data(n, bs=8, seed=seed)
    for b in out:
        L = torch.randint(2, 4, (8,), generator=g)
        L[0] = 12                                  # one long row in every batch
        b["attention_mask"] = (torch.arange(12)[None] < L[:, None]).long()
        b["ids"] = b["ids"].masked_fill(b["attention_mask"] == 0, PAD)
        b["labels"] = b["ids"].clone()
    return out


def signal(case, i, r):
    """the loss is not the loss of the real tokens"""
    b = case.batches[max(i, 0)]
    real = dict(b, labels=b["ids"].masked_fill(b["attention_mask"] == 0, -100))
    with torch.no_grad():
        return abs(float(case.loss_fn(case.model, b)) - float(B.lm_loss(case.model, real))) > 1e-4


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, test = B.TinyLM(), batches(60), S.cat(batches(8, seed=7))
    if fix == "labels_minus_100":
        for b in data:
            b["labels"] = b["labels"].masked_fill(b["attention_mask"] == 0, -100)

    def loss_fn(m, b):
        z = m(b["ids"])[:, :-1].flatten(0, 1)
        return F.cross_entropy(z, b["labels"][:, 1:].flatten(), ignore_index=PAD if fix == "ignore_index" else -100)  # <-- origin

    def quality(c):                                # loss of the real tokens
        lab = test["ids"].masked_fill(test["attention_mask"] == 0, -100)
        return S.in_eval(m, lambda: B.lm_loss(m, {"ids": test["ids"], "labels": lab}))

    return SCase(m, loss_fn, data, torch.optim.AdamW(m.parameters(), lr=5e-3), quality=quality)
