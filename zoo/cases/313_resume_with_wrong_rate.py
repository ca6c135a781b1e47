"""Quantile regression by SGD is resumed at step 7 with the rate of another run, 2000 times too large."""
import torch
from protocol import Case
import blocks as B
TRUTH = dict(id="313_resume_with_wrong_rate", source="common report: learning rate of the checkpoint overwritten on resume",
             symptom="spike", phase="optimizer", cause="lr_divergence", op=None, module=None, line_marker=None, first_bad_step=7, bad_rows=None,
             fixes_that_work=["right_rate"], fixes_that_do_not=["skip_batch", "zero_nan_grads"])
FIXES = {"right_rate"}


def loss_fn(m, b):
    e = b["y"] - m(b["x"])
    return torch.maximum(0.9 * e, -0.1 * e).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.mlp(8, 24, 1, torch.nn.ReLU)
    opt = B.sgd(m, 0.02, momentum=0.5)

    def resume(case, i):
        if i == 7 and fix is None:
            case.optimizer.param_groups[0]["lr"] *= 2000.0

    def healthy(log):
        return all(r.loss_ok and r.param_ok for r in log) and max(r.loss for r in log) < 3 * max(r.loss for r in log[:7])

    return Case(m, loss_fn, B.xy(14, bs=16), opt, before_step=resume, healthy=healthy)
