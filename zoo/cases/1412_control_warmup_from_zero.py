"""CONTROL: linear warm-up starts at a rate of exactly 0: the first step moves nothing, the next ones do."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1412_control_warmup_from_zero", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[],
             source="standard practice")


def make(seed=0, fix=None):
    m = B.TinyLM(V=24, d=16, n=1)
    opt = B.adam(m, 5e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, k / 6))
    return Case(m, B.lm_loss, B.lm_data(14, V=24), opt, scheduler=sched, clip_norm=1.0,
                healthy=lambda log: log[0].update_norm == 0 and log[-1].update_norm > 0 and log[-1].loss < log[0].loss)
