"""IoU loss: prediction and annotation are both boxes without area, intersection / union is 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2318_iou_of_two_empty_boxes',
             source='own, from practice',
             symptom='nan_loss',
             phase='loss',
             cause='zero_division',
             op='div',
             op_also=[],
             module=None,
             line_marker='# <-- origin',
             first_bad_step=6,
             bad_rows=[5],
             fixes_that_work=['eps', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip', 'lr_down'])
FIXES = {'eps'}


class Sizes(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.fc2 = nn.Linear(8, 16, bias=False), nn.Linear(16, 2, bias=False)

    def forward(s, x):
        return s.fc2(torch.tanh(s.fc1(x))).abs()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = Sizes(), B.xy(10), torch.Generator().manual_seed(13)
    for b in data:
        b["wh"] = torch.rand(6, 2, generator=g) + 0.1
    data[6]["x"][5] = 0.0
    data[6]["wh"][5] = 0.0

    def loss_fn(m, b):
        p, t = m(b["x"]), b["wh"]
        inter = torch.min(p, t).prod(1)
        union = p.prod(1) + t.prod(1) - inter
        if fix == "eps":
            union = union + 1e-6
        iou = inter / union  # <-- origin
        return (1 - iou).mean() + 0.1 * F.l1_loss(p, t)

    return Case(m, loss_fn, data, B.adam(m))
