"""The loop divides the gradients by the loss scale itself (to log their norm) and GradScaler divides them again: the update is
4096 times too small and the model does not learn."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="209_gradients_unscaled_twice", source="https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-unscaled-gradients",
             symptom="silent", phase="optimizer", cause="scaler_misuse", op=None, op_also=["div", "div_"], module=None, line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["unscale_once", "fp32", "bf16"], fixes_that_do_not=["lr_down", "clip", "skip_batch", "zero_nan_grads"])
FIXES = {"unscale_once"}


def loss_fn(m, b):
    return m(input_ids=b["ids"], labels=b["labels"]).loss.float()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.gpt2()

    def log_norms(case, i):
        if fix != "unscale_once" and case.scaler is not None:
            for p in case.model.parameters():
                if p.grad is not None:
                    p.grad.div_(case.scaler.get_scale())

    opt = torch.optim.SGD(m.parameters(), lr=0.5, momentum=0.9)
    return Case(m, loss_fn, B.lm_data(14), opt, autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=4096.),
                after_backward=log_norms, healthy=lambda log: log[-1].loss < 0.9 * log[0].loss)
