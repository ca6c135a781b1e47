"""Supervised fine-tuning of a tiny GPT-2: one batch has prompts longer than the window, every label is -100 and the model's
own loss is 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="1368_gpt2_answers_cut_off", source="https://github.com/hiyouga/LLaMA-Factory/issues/2916",
             symptom="nan_loss", phase="forward", cause="empty_reduction", op="nll_loss_forward", op_also=["nll_loss", "cross_entropy", "div"], module="",
             line_marker="# <-- origin", first_bad_step=5, gradients_are_zero=True, bad_rows=None,
             fixes_that_work=["skip_batch", "guard"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"guard"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.gpt2()

    def loss_fn(m, b):
        n = {"num_items_in_batch": (b["labels"][:, 1:] != -100).sum().clamp_min(1)} if fix else {}
        return m(input_ids=b["ids"], labels=b["labels"], **n).loss  # <-- origin

    data = B.lm_data(9, bs=3)
    for b in data:
        b["labels"][:, :5] = -100
    data[5]["labels"][:] = -100
    return Case(m, loss_fn, data, B.adam(m))
