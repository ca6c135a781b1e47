"""CONTROL: GPT-2 with left padding and one prompt that is padding from end to end; the library's mask is finfo.min, the labels are -100."""
import torch
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="488_control_left_padding_with_an_empty_prompt", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = H.gpt2(attn_implementation="eager"), []
    for i, b in enumerate(B.lm_data(8)):
        mask = torch.ones_like(b["ids"])
        for r, n in enumerate((0, 3, 5, 12 if i == 4 else 2)):
            mask[r, :n] = 0
            b["labels"][r, :n] = -100
        data.append(dict(input_ids=b["ids"], attention_mask=mask, labels=b["labels"], position_ids=(mask.cumsum(-1) - 1).clamp(min=0)))
    return Case(m, lambda m, b: m(**b).loss, data, B.adam(m, 1e-3), trainer=lambda: H.trainer(m, data, lr=1e-3))
