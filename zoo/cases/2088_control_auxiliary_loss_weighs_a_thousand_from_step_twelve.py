"""CONTROL: the physics term of a PINN is switched on with weight 1000 after the data fit, as planned: the loss jumps by orders of magnitude and falls again."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2088_control_auxiliary_loss_weighs_a_thousand_from_step_twelve", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Field(nn.Module):
    def __init__(s):
        super().__init__()
        s.net, s.weight = B.mlp(2, 32, 1), 0.0

    def forward(s, x):
        return s.net(x)


def loss_fn(m, b):
    x = b["x"].clone().requires_grad_(True)
    u = m(x)
    du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    return F.mse_loss(u, b["u"]) + m.weight * (du[:, :1] + 0.5 * du[:, 1:]).pow(2).mean()


def on(case, i):
    case.model.weight = 0.0 if i < 12 else 1000.0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Field()
    g = torch.Generator().manual_seed(7)
    data = []
    for _ in range(40):
        x = torch.rand(20, 2, generator=g)
        data.append(dict(x=x, u=torch.sin(2 * (x[:, 1:] - 0.5 * x[:, :1]))))
    return Case(m, loss_fn, data, B.adam(m, 3e-3), before_step=on, healthy=lambda log: log[12].loss > 20 * log[11].loss and log[-1].loss < log[12].loss)
