"""CONTROL: group-relative policy gradient with eps: all rewards of a batch agree, its loss and gradients are exactly zero and the optimizer step is legitimate."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="297_control_batch_without_signal", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    n, k, d = b["obs"].shape
    logp = F.log_softmax(m(b["obs"].view(n * k, d)), -1).gather(1, b["act"].view(-1, 1)).view(n, k)
    adv = (b["reward"] - b["reward"].mean(1, keepdim=True)) / (b["reward"].std(1, keepdim=True) + 1e-4)
    return -(torch.exp(logp - logp.detach()) * adv).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = B.mlp(5, 16, 4), torch.Generator().manual_seed(3)
    data = [dict(obs=torch.randn(3, 6, 5, generator=g), act=torch.randint(0, 4, (3, 6), generator=g), reward=torch.rand(3, 6, generator=g)) for _ in range(12)]
    for i in (4, 9):
        data[i]["reward"] = torch.ones(3, 6)
    return Case(m, loss_fn, data, B.adam(m), healthy=lambda log: log[4].grad_norm == 0 and log[5].grad_norm > 0)
