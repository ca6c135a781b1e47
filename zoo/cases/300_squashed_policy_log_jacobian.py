"""A squashed Gaussian policy: the log-determinant of tanh is log(1 - a^2), and a far pre-activation makes a exactly 1."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="300_squashed_policy_log_jacobian", source="common report: tanh-squashed actions in soft actor-critic without an eps",
             symptom="inf_loss", phase="forward", cause="log_zero", op="log", module="squash", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[2], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Squash(nn.Module):
    fix = None

    def forward(s, u):
        a = torch.tanh(u)
        room = 1 - a.pow(2)
        if s.fix == "eps":
            room = room + 1e-6
        return a, torch.log(room).sum(-1)  # <-- origin


class Actor(nn.Module):
    def __init__(s):
        super().__init__()
        s.mean, s.squash = nn.Linear(8, 3), Squash()

    def forward(s, x, noise):
        a, jacobian = s.squash(s.mean(x) + 0.3 * noise)
        return a, -0.5 * noise.pow(2).sum(-1) - jacobian


def loss_fn(m, b):
    a, log_prob = m(b["x"], b["noise"])
    return (0.05 * log_prob + (a - b["y"]).pow(2).sum(-1)).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = Actor(), B.xy(9), torch.Generator().manual_seed(4)
    m.squash.fix = fix
    for b in data:
        b["noise"] = torch.randn(6, 3, generator=g)
    data[5]["x"][2] *= 200.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
