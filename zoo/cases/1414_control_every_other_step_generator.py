"""CONTROL: the loop trains the critic and the generator in turn: on each step half of the parameters have no gradient."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1414_control_every_other_step_generator", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[],
             source="standard practice")


class Gan(nn.Module):
    def __init__(s):
        super().__init__()
        s.gen, s.critic = B.mlp(4, 20, 6), B.mlp(6, 20, 1, nn.ReLU)

    def forward(s, z):
        return s.gen(z)


def loss_fn(m, b):
    if bool(b["turn"][0]):
        return -m.critic(m.gen(b["z"])).mean()
    with torch.no_grad():
        fake = m.gen(b["z"])
    return F.softplus(m.critic(fake)).mean() + F.softplus(-m.critic(b["real"])).mean()


def make(seed=0, fix=None):
    m, g = Gan(), torch.Generator().manual_seed(6)
    data = [dict(z=torch.randn(6, 4, generator=g), real=torch.randn(6, 6, generator=g) + 1, turn=torch.full((6,), i % 2)) for i in range(14)]

    def turn(case, i):
        case.model.critic.requires_grad_(i % 2 == 0)
        case.model.gen.requires_grad_(i % 2 == 1)

    return Case(m, loss_fn, data, B.adam(m), before_step=turn)
