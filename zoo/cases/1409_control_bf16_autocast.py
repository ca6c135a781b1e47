"""CONTROL: bf16 autocast without a scaler; activations reach 1e6, far beyond fp16, and all is well."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1409_control_bf16_autocast", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[],
             source="standard practice")


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.up, s.norm, s.out = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 1)

    def forward(s, x):
        return s.out(torch.tanh(s.norm(F.relu(s.up(x)) * 1e6)))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]).float(), b["y"])


def make(seed=0, fix=None):
    m = Net()
    return Case(m, loss_fn, B.xy(14, bs=8), B.adam(m, 5e-3), autocast=torch.bfloat16, healthy=lambda log: all(r.loss_ok and r.grad_ok for r in log))
