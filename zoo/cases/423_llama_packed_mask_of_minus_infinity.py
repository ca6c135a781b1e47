"""Llama with packed documents: a hand-made 4-D additive mask gives the padding rows -inf everywhere, and eager attention turns them
into NaN that reaches the real tokens through the loss of the row."""
import torch
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="423_llama_packed_mask_of_minus_infinity", source="common report: hand-made 4-D masks with fully masked rows",
             symptom="nan_loss", phase="forward", cause="masked_softmax_row", op="softmax", module="model.layers.0.self_attn", line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[1], fixes_that_work=["finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"finfo_min"}


def block_mask(doc, low):
    t = doc.shape[1]
    same = (doc[:, :, None] == doc[:, None, :]) & (doc[:, :, None] > 0)
    allowed = same & torch.ones(t, t, dtype=torch.bool).tril()
    return torch.zeros(doc.shape[0], 1, t, t).masked_fill(~allowed[:, None], low)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.llama(attn_implementation="eager")
    low = torch.finfo(torch.float32).min if fix == "finfo_min" else float("-inf")

    def step(model, b):
        out = model(input_ids=b["input_ids"], attention_mask=block_mask(b["doc"], low), labels=b["labels"])  # <-- origin
        return out.loss

    data = []
    for b in B.lm_data(7):
        doc = torch.ones_like(b["ids"])
        doc[:, 6:] = 2
        data.append(dict(input_ids=b["ids"], doc=doc, labels=b["labels"]))
    data[3]["doc"][1, 9:] = 0
    data[3]["labels"][1, 9:] = -100
    data[3]["labels"][1, 4] = -100
    return Case(m, step, data, B.adam(m, 1e-3))
