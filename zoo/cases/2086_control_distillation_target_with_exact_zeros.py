"""CONTROL: F.kl_div with target probabilities that are exactly zero: 0 log 0 counts as 0 there and has no gradient."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2086_control_distillation_target_with_exact_zeros", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM()
    g = torch.Generator().manual_seed(6)
    data = []
    for b in B.lm_data(12):
        t = torch.zeros(4, 12, 32)
        t.scatter_(2, b["ids"].roll(-1, 1)[..., None], 1.0)
        data.append(dict(ids=b["ids"], target=t))
    return Case(m, lambda m, b: F.kl_div(torch.log_softmax(m(b["ids"]), -1).flatten(0, 1), b["target"].flatten(0, 1), reduction="batchmean"), data, B.adam(m, 2e-3),
                healthy=lambda log: log[-1].loss < log[0].loss)
