"""Gumbel noise -log(-log(u)) from single-precision uniforms that may round to exactly 1: log(1) is 0 and its logarithm is not finite."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="338_gumbel_noise_at_one", source="common report: hand-written Gumbel noise without an eps",
             symptom="nan_loss", phase="forward", cause="log_zero", op="log", op_also=["softmax"], module="sample", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[0], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Sample(nn.Module):
    eps = 0.0

    def forward(s, logits, u):
        noise = -torch.log(-torch.log(u) + s.eps)  # <-- origin
        return torch.softmax(logits + noise, -1)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.logits, s.sample, s.out = nn.Linear(8, 4), Sample(), nn.Linear(4, 1)

    def forward(s, x, u):
        return s.out(s.sample(s.logits(x), u))


def loss_fn(m, batch):
    x, y, u = batch
    return (m(x, u) - y).abs().mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(2)
    m.sample.eps = 1e-6 if fix == "eps" else 0.0
    data = [(b["x"], b["y"], torch.rand(6, 4, generator=g) * 0.98 + 0.01) for b in B.xy(8)]
    data[4][2][0, 2] = 1.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
