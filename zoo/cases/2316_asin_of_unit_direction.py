"""Elevation angle asin(n_0) of a normalised direction: a sample that points straight up gives exactly 1, where the derivative is infinite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2316_asin_of_unit_direction',
             source='own, from practice',
             symptom='nan_grad',
             phase='backward',
             cause='domain_edge_grad',
             op='asin',
             op_also=[],
             module=None,
             line_marker='# <-- origin',
             first_bad_step=6,
             bad_rows=[2],
             fixes_that_work=['clamp', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip', 'lr_down'])
FIXES = {'clamp'}


class Gain(nn.Module):
    def __init__(s):
        super().__init__()
        s.gain = nn.Parameter(torch.linspace(0.8, 1.2, 3))

    def forward(s, v):
        return F.normalize(s.gain * v, dim=1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Gain(), torch.Generator().manual_seed(11)
    data = [dict(v=torch.randn(6, 3, generator=g)) for _ in range(10)]
    data[6]["v"][2] = torch.tensor([2.0, 0.0, 0.0])
    for b in data:
        b["angle"] = torch.asin(F.normalize(b["v"], dim=1)[:, 0].clamp(-0.99, 0.99))

    def loss_fn(m, b):
        up = m(b["v"])[:, 0]
        if fix == "clamp":
            up = up.clamp(-1 + 1e-6, 1 - 1e-6)
        angle = torch.asin(up)  # <-- origin
        return F.mse_loss(angle, b["angle"])

    return Case(m, loss_fn, data, B.adam(m))
