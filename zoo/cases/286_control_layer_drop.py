"""CONTROL: stochastic depth: every other step leaves one block out, its parameters have no gradient in that step and learn in the next."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="286_control_layer_drop", source="https://arxiv.org/abs/1909.11556", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.blocks, s.out = nn.Linear(8, 16), nn.ModuleList(nn.Linear(16, 16) for _ in range(3)), nn.Linear(16, 1)
        s.skip = None

    def forward(s, x):
        x = s.inp(x)
        for i, blk in enumerate(s.blocks):
            if i != s.skip:
                x = x + torch.tanh(blk(x))
        return s.out(x)


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net()

    def choose(case, i):
        case.model.skip = (i // 2) % 3 if i % 2 else None

    return Case(m, loss_fn, B.xy(14), B.adam(m), before_step=choose,
                healthy=lambda log: any(log[1].grads[f"blocks.0.{n}"] is None for n in ("weight", "bias")) and log[2].grads["blocks.0.weight"] > 0)
