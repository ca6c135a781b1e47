"""Gradient penalty with sqrt(sum g^2): at the origin a bias-free ReLU critic is flat, the norm is 0 and its derivative infinite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2319_gradient_norm_penalty_flat',
             source='own, from practice',
             symptom='nan_grad',
             phase='backward',
             cause='sqrt_grad_at_zero',
             op='sqrt',
             op_also=['pow', 'mul'],
             module=None,
             line_marker='# <-- origin',
             first_bad_step=5,
             bad_rows=[0],
             fixes_that_work=['eps', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip', 'lr_down'])
FIXES = {'eps'}


class Critic(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b = nn.Linear(8, 16, bias=False), nn.Linear(16, 1, bias=False)

    def forward(s, x):
        return s.b(F.relu(s.a(x)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Critic(), B.xy(9)
    data[5]["x"][0] = 0.0

    def loss_fn(m, b):
        x = b["x"].clone().requires_grad_(True)
        out = m(x)
        g, = torch.autograd.grad(out.sum(), x, create_graph=True)
        n2 = (g * g).sum(1) + (1e-12 if fix == "eps" else 0.0)
        norm = torch.sqrt(n2)  # <-- origin
        return F.mse_loss(out, b["y"]) + (norm - 1).pow(2).mean()

    return Case(m, loss_fn, data, B.adam(m))
