"""A small Llama is trained with Adam at learning rate 3 from the first step, no warm-up: the first update sends the loss from ln V
to more than ten times that, where it stays. Nothing is non-finite."""
import torch
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="237_llama_without_warmup", source="common report: learning rate copied from SGD, no warm-up",
             symptom="spike", phase="optimizer", cause="lr_divergence", op=None, module=None, line_marker=None, first_bad_step=0, bad_rows=None,
             fixes_that_work=["lr_down"], fixes_that_do_not=["clip", "skip_batch", "zero_nan_grads"])
FIXES = set()


def loss_fn(m, b):
    return m(input_ids=b["ids"], labels=b["labels"]).loss


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.llama(use_cache=False, attn_implementation="eager")
    return Case(m, loss_fn, B.lm_data(10), torch.optim.Adam(m.parameters(), lr=3.0),
                healthy=lambda log: all(r.loss_ok for r in log) and max(r.loss for r in log[1:]) < 1.5 * log[0].loss)
