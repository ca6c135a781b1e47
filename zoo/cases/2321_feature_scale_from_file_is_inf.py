"""Between two steps the feature statistics are reloaded from a file in which one scale is inf: inf * 0 in the forward of every later batch."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2321_feature_scale_from_file_is_inf',
             source='own, from practice',
             symptom='nan_loss',
             phase='state',
             cause='poisoned_state',
             op=None,
             op_also=[],
             module='norm',
             line_marker=None,
             first_bad_step=5,
             bad_rows=None,
             fixes_that_work=['restore_buffers'],
             fixes_that_do_not=['clip', 'skip_batch', 'lr_down'],
             tensor='norm.scale',
             tensor_kind='buffer')
FIXES = {'restore_buffers'}


class Scale(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.register_buffer("mean", torch.zeros(d))
        s.register_buffer("scale", torch.ones(d))

    def forward(s, x):
        return (x - s.mean) * s.scale


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.norm, s.body = Scale(8), B.mlp(8, 16, 1, nn.ReLU)

    def forward(s, x):
        return s.body(s.norm(x))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(9)

    def reload(case, i):
        if i == 5:
            file = torch.tensor([1.1, 0.9, 1.0, float("inf"), 1.2, 1.0, 0.8, 1.0])
            if fix != "restore_buffers":
                case.model.norm.scale.copy_(file)

    return Case(m, loss_fn, data, B.adam(m), before_step=reload)
