"""HF Trainer over a tiny Llama: from one batch nothing but -100 is left after truncation; the model's loss is 0/0 and the
Trainer's log filter hides it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="1375_trainer_labels_all_masked", source="recipes.md: all labels masked under the HF Trainer",
             symptom="nan_loss", phase="forward", cause="empty_reduction", op="nll_loss_forward", op_also=["nll_loss", "cross_entropy", "div"], module="",
             line_marker=None, first_bad_step=4, gradients_are_zero=True, bad_rows=None,
             fixes_that_work=["skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = set()


def loss_fn(m, b):
    return m(input_ids=b["input_ids"], labels=b["labels"]).loss


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.llama()
    data = [dict(input_ids=b["ids"], labels=b["labels"]) for b in B.lm_data(8)]
    for b in data:
        b["labels"][:, :3] = -100
    data[4]["labels"][:] = -100
    return Case(m, loss_fn, data, B.adam(m), trainer=lambda: H.trainer(m, data, logging_nan_inf_filter=False),
                trainer_check=lambda t: any(str(h.get("loss")) == "nan" for h in t.state.log_history))
