"""GPT-2 with a loop that writes zeros over NaN gradients: a batch without a single label should not count, Adam moves on."""
import torch, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="324_gpt2_scrubbed_batch_still_moves", source="common report: nan_to_num on gradients as a way to skip a step",
             symptom="silent", phase="optimizer", cause="stale_momentum", op=None, module=None, line_marker=None, nonfinite_in_passing=True, first_bad_step=6, bad_rows=None,
             fixes_that_work=["true_skip", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"true_skip"}


def loss_fn(m, b):
    logits, labels = m(input_ids=b["ids"]).logits[:, :-1], b["labels"][:, 1:]
    wanted = (labels != -100).float()
    token = F.cross_entropy(logits.transpose(1, 2), labels.clamp_min(0), reduction="none")
    return (token * wanted).sum() / wanted.sum()


def healthy(log):
    return all(r.update_norm == 0 for r in log if not r.loss_ok) and all(r.param_ok and r.state_ok for r in log)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = H.gpt2(), B.lm_data(10)
    data[6]["labels"][:] = -100
    return Case(m, loss_fn, data, B.adam(m, 1e-3), zero_nan_grads=fix != "true_skip", skip_nonfinite="grad" if fix == "true_skip" else None, healthy=healthy,
                extra=dict(first_bad=lambda log: next((r.step for r in log if not r.loss_ok and r.update_norm > 0), None)))
