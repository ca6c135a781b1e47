"""CONTROL: Llama with left padding and one row that is padding alone, whose labels are all ignored; other rows carry the loss."""
import torch
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="392_control_llama_row_of_padding", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    return m(input_ids=b["ids"], attention_mask=b["attn"], labels=b["labels"]).loss


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = H.llama(), B.lm_data(9)
    for i, b in enumerate(data):
        b["attn"] = torch.ones(4, 12, dtype=torch.long)
        b["attn"][0, :5] = 0
        b["attn"][1 + i % 3] = 0
        b["ids"][b["attn"] == 0], b["labels"][b["attn"] == 0] = 0, -100
    return Case(m, loss_fn, data, B.adam(m, 1e-3), clip_norm=1.0)
