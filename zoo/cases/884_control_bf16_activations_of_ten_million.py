"""CONTROL: bfloat16 autocast with activations of ten million before the norm: far outside fp16, well inside bf16."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="884_control_bf16_activations_of_ten_million", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Wide(nn.Module):
    def __init__(s):
        super().__init__()
        s.up, s.down, s.norm, s.head = nn.Linear(8, 64), nn.Linear(64, 32), nn.LayerNorm(32), nn.Linear(32, 1)

    def forward(s, x):
        return s.head(s.norm(s.down(F.relu(s.up(x)) * 3e7)))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]).float(), b["y"])


def make(seed=0, fix=None):
    m = Wide()
    return Case(m, loss_fn, B.xy(16, bs=16), B.adam(m, 3e-3), autocast=torch.bfloat16, healthy=lambda log: all(r.loss_ok and r.grad_ok for r in log) and log[-1].loss < 1.5 * log[0].loss)
