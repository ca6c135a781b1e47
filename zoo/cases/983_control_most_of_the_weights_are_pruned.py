"""CONTROL: lottery-ticket training: at step 12 the smallest four fifths of every matrix are set to zero and held there by a gradient mask. The loss jumps once; exact zeros in weights and gradients are intended."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="983_control_most_of_the_weights_are_pruned", source="https://arxiv.org/abs/1803.03635", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    m, data = B.mlp(8, 64, 1, nn.ReLU), B.xy(1, bs=64)
    masks = {}

    def before(case, i):
        if i == 12:
            with torch.no_grad():
                for n, p in case.model.named_parameters():
                    if p.dim() == 2:
                        masks[n] = (p.abs() > p.abs().flatten().kthvalue(int(0.8 * p.numel())).values).float()
                        p.mul_(masks[n])

    def after(case, i):
        for n, p in case.model.named_parameters():
            if n in masks:
                p.grad.mul_(masks[n])

    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data * 24, opt, before_step=before, after_backward=after,
                healthy=lambda log: log[12].loss > 1.5 * log[11].loss and log[-1].loss < log[12].loss)
