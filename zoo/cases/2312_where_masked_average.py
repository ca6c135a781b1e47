"""where(n > 0, s / n, 0) for bags without instances: the forward is clean, 0/0 comes back in the gradient."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2312_where_masked_average',
             source='own, from practice',
             symptom='nan_grad',
             phase='backward',
             cause='where_grad_trap',
             op='div',
             op_also=[],
             module='pool',
             line_marker='# <-- origin',
             first_bad_step=7,
             bad_rows=[1],
             fixes_that_work=['double_where', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip', 'nan_to_num'])
FIXES = {'double_where', 'nan_to_num'}


class BagMean(nn.Module):
    fix = None

    def forward(s, h, mask):
        total, n = (h * mask[..., None]).sum(1), mask.sum(1, keepdim=True)
        if s.fix == "double_where":
            n = torch.where(n > 0, n, torch.ones_like(n))
        mean = total / n  # <-- origin
        if s.fix == "nan_to_num":
            return torch.nan_to_num(mean)
        return torch.where(mask.sum(1, keepdim=True) > 0, mean, torch.zeros_like(mean))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.inst, s.pool, s.head = nn.Linear(8, 12), BagMean(), nn.Linear(12, 1)

    def forward(s, x, mask):
        return s.head(s.pool(torch.tanh(s.inst(x)), mask))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"], b["mask"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(8)
    m.pool.fix = fix
    data = []
    for i in range(11):
        mask = (torch.rand(6, 4, generator=g) < 0.7).float()
        mask[:, 0] = 1
        if i == 7:
            mask[1] = 0
        data.append(dict(x=torch.randn(6, 4, 8, generator=g), mask=mask, y=torch.randn(6, 1, generator=g)))
    return Case(m, loss_fn, data, B.adam(m))
