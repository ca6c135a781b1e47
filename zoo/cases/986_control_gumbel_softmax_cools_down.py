"""CONTROL: the temperature of a Gumbel-softmax falls from 2 to 0.1 by schedule: probabilities become one-hot, gradients noisy and now and then large."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="986_control_gumbel_softmax_cools_down", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Choose(nn.Module):
    tau = 2.0

    def __init__(s):
        super().__init__()
        s.enc, s.table, s.dec = B.mlp(8, 24, 6), nn.Linear(6, 12, bias=False), nn.Linear(12, 8)

    def forward(s, x, noise):
        return s.dec(torch.tanh(s.table(torch.softmax((s.enc(x) + noise) / s.tau, -1))))


def make(seed=0, fix=None):
    m, data, g = Choose(), B.xy(20, bs=16), torch.Generator().manual_seed(86)
    for b in data:
        u = torch.rand(16, 6, generator=g).clamp(1e-6, 1 - 1e-6)
        b["noise"] = -torch.log(-torch.log(u))

    def before(case, i):
        case.model.tau = max(0.1, 2.0 * 0.8 ** i)

    return Case(m, lambda m, b: F.mse_loss(m(b["x"], b["noise"]), b["x"]), data, B.adam(m, 5e-3), before_step=before, healthy=lambda log: all(r.loss_ok and r.grad_ok for r in log))
