"""A tiny Llama with eager attention gets a hand-made additive mask for packed documents; a padding segment is -inf
everywhere and its softmax row NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="1373_packed_document_all_masked", source="https://github.com/huggingface/transformers/issues/38690",
             symptom="nan_loss", phase="forward", cause="masked_softmax_row", op="softmax", op_also=["_softmax"], module="model.layers.0.self_attn",
             line_marker="# <-- origin", first_bad_step=6, bad_rows=[0, 3], fixes_that_work=["finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"finfo_min"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.llama(attn_implementation="eager")
    neg = -1e9 if fix else float("-inf")

    def loss_fn(m, b):
        t = b["ids"].shape[1]
        same = (b["doc"][:, :, None] == b["doc"][:, None, :]) & (b["doc"][:, None, :] >= 0)
        ok = same & torch.ones(t, t, dtype=torch.bool).tril()
        mask = torch.zeros(ok.shape).masked_fill(~ok, neg)[:, None]
        lg = m(input_ids=b["ids"], attention_mask=mask).logits  # <-- origin
        return F.cross_entropy(lg[:, :-1].flatten(0, 1), b["labels"][:, 1:].flatten())

    data = B.lm_data(10)
    for b in data:
        b["doc"] = (torch.arange(12) >= 7).long().repeat(4, 1)
    for r in (0, 3):
        data[6]["doc"][r, 10:] = -1
        data[6]["labels"][r, 10:] = -100
    return Case(m, loss_fn, data, B.adam(m))
