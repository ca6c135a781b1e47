"""CONTROL: cosine annealing with warm restarts: the rate jumps from almost nothing to its start, the loss bumps and falls again."""
import torch, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="398_control_warm_restart", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM(d=16, n=1)
    opt = B.adam(m, 2e-2)
    return Case(m, B.lm_loss, B.lm_data(20), opt, scheduler=torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 6), healthy=lambda log: log[-1].loss < log[0].loss)
