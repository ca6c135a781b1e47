"""CONTROL: the vocabulary is padded to a multiple of 64 and the logits of the padding are -inf before cross entropy; every row keeps its real words."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="980_control_vocabulary_padded_to_sixty_four", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class PaddedLM(B.TinyLM):
    def forward(s, ids, mask=None):
        lg = super().forward(ids, mask)
        lg[..., 40:] = float("-inf")
        return lg


def make(seed=0, fix=None):
    m = PaddedLM(V=64)
    return Case(m, B.lm_loss, B.lm_data(12, V=40), B.adam(m, 5e-3), healthy=lambda log: log[-1].loss < log[0].loss and all(r.loss_ok and r.grad_ok for r in log))
