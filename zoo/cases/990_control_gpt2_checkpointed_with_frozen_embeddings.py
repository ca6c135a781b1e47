"""CONTROL: Hugging Face GPT-2 with frozen embeddings, non-reentrant checkpointing and padded rows: no gradient for wte, wpe and the tied head by intention, all blocks learn."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="990_control_gpt2_checkpointed_with_frozen_embeddings", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    return m(input_ids=b["ids"], attention_mask=b["mask"], labels=b["labels"]).loss


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.gpt2(use_cache=False)
    m.transformer.wte.requires_grad_(False)
    m.transformer.wpe.requires_grad_(False)
    m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    data = B.lm_data(12)
    for i, b in enumerate(data):
        b["mask"] = torch.ones_like(b["ids"])
        b["mask"][i % 4, 8:] = 0
        b["labels"][i % 4, 8:] = -100
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=5e-3)
    return Case(m, loss_fn, data, opt, healthy=lambda log: log[-1].loss < log[0].loss and all(g for n, g in log[-1].grads.items() if n.endswith("c_fc.weight")))
