"""CONTROL: alternating optimisation: encoder and decoder take turns of four steps, the one at rest has no gradients at all."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2087_control_decoder_is_frozen_for_every_other_phase", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class AE(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc, s.dec = B.mlp(8, 16, 3), B.mlp(3, 16, 8)

    def forward(s, x):
        return s.dec(s.enc(x))


def turn(case, i):
    encode = (i // 4) % 2 == 0
    case.model.enc.requires_grad_(encode)
    case.model.dec.requires_grad_(not encode)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = AE()
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["x"]), B.xy(32, bs=12), B.adam(m, 3e-3), before_step=turn)
