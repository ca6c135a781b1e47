"""CONTROL: discriminative fine-tuning: the lowest layers sit in a parameter group with lr=0 for the first phase. They get gradients and do not move."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="494_control_group_with_a_rate_of_zero", source="standard practice (ULMFiT)", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.ModuleDict(dict(base=B.mlp(8, 16, 8), head=nn.Linear(8, 1)))
    opt = torch.optim.Adam([dict(params=m["base"].parameters(), lr=0.0), dict(params=m["head"].parameters(), lr=3e-3)])
    return Case(m, lambda m, b: F.mse_loss(m["head"](m["base"](b["x"])), b["y"]), B.xy(12), opt)
