"""CONTROL: a generator and a critic trained in turns by one optimizer: on every other step one half gets no gradient."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="394_control_critic_and_generator", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Gan(nn.Module):
    def __init__(s):
        super().__init__()
        s.gen, s.critic = B.mlp(4, 12, 8), B.mlp(8, 12, 1)


def loss_fn(m, b):
    if b["turn"] == 0:
        return F.softplus(-m.critic(b["x"])).mean() + F.softplus(m.critic(m.gen(b["z"]).detach())).mean()
    return F.softplus(-m.critic(m.gen(b["z"]))).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = Gan(), B.xy(12), torch.Generator().manual_seed(3)
    for i, b in enumerate(data):
        b["z"], b["turn"] = torch.randn(6, 4, generator=g), i % 2
    return Case(m, loss_fn, data, B.adam(m, 2e-3))
