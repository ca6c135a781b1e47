"""CONTROL: Lookahead: every five steps the fast weights are set to the slow ones between two optimizer steps. Weights that change outside the optimizer are the method."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="888_control_lookahead_pulls_the_weights_back", source="https://arxiv.org/abs/1907.08610", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    m = B.TinyLM()
    slow = {}

    def before(case, i):
        with torch.no_grad():
            for n, p in case.model.named_parameters():
                if i == 0:
                    slow[n] = p.clone()
                elif i % 5 == 0:
                    slow[n].lerp_(p, 0.5)
                    p.copy_(slow[n])

    return Case(m, B.lm_loss, B.lm_data(16), B.adam(m, 5e-3), before_step=before, healthy=lambda log: log[-1].loss < log[0].loss)
