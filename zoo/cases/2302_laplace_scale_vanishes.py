"""Laplace likelihood: the scale head softplus(h) rounds to exactly 0 for a sample far outside; |error| / 0 is infinite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2302_laplace_scale_vanishes',
             source='own, from practice',
             symptom='nan_loss',
             phase='loss',
             cause='zero_division',
             op='div',
             op_also=['log'],
             module=None,
             line_marker='# <-- origin',
             first_bad_step=5,
             bad_rows=[1],
             fixes_that_work=['eps', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip'],
             symptom_also=['inf_loss'])
FIXES = {'eps'}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.trunk, s.mu, s.scale = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(8, 1)

    def forward(s, x):
        return s.mu(torch.tanh(s.trunk(x))), s.scale(x)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(10)
    with torch.no_grad():
        m.scale.weight.copy_(torch.tensor([[0.3, -0.2, 0.1, 0.2, -0.1, 0.1, 0.2, -0.3]]))
    data[5]["x"][1] = -torch.sign(torch.tensor([0.3, -0.2, 0.1, 0.2, -0.1, 0.1, 0.2, -0.3])) * 200.0

    def loss_fn(m, b):
        mu, raw = m(b["x"])
        scale = F.softplus(raw) + (1e-3 if fix == "eps" else 0.0)
        err = (b["y"] - mu).abs()
        return (err / scale  # <-- origin
                + torch.log(2 * scale)).mean()

    return Case(m, loss_fn, data, B.adam(m))
