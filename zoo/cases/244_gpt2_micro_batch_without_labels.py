"""Fine-tuning GPT-2 with gradient accumulation: one micro-batch holds only prompts that were cut before the answer, all labels are
-100, and the mean inside the library's loss is over nothing."""
import torch
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="244_gpt2_micro_batch_without_labels", source="https://github.com/huggingface/trl/issues/6668",
             symptom="nan_loss", phase="forward", cause="empty_reduction", op="nll_loss_forward", op_also=["nll_loss", "cross_entropy", "div"], module="", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=None, fixes_that_work=["skip_batch", "guard"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"guard"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.gpt2()

    def loss_fn(m, b):
        if fix == "guard" and not (b["labels"][:, 1:] != -100).any():
            return 0.0 * m(input_ids=b["ids"]).logits.sum()
        return m(input_ids=b["ids"], labels=b["labels"]).loss  # <-- origin

    data = B.lm_data(12, bs=2)
    for i, b in enumerate(data):
        b["labels"][:, : 12 if i == 5 else 4] = -100
    return Case(m, loss_fn, data, B.adam(m, 3e-3), accumulation=3)
