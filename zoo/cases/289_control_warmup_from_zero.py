"""CONTROL: linear warm-up that starts at learning rate 0 with gradient accumulation: the first update changes nothing, and only every third batch steps at all."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="289_control_warmup_from_zero", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    return m(input_ids=b["ids"], labels=b["labels"]).loss


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.gpt2()
    opt = torch.optim.AdamW(m.parameters(), lr=5e-3, weight_decay=0.1)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda e: min(1.0, e / 3))
    return Case(m, loss_fn, B.lm_data(18), opt, scheduler=sched, accumulation=3, healthy=lambda log: log[2].update_norm == 0 and log[5].update_norm > 0)
