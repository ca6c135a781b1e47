"""fp16 autocast: an activation penalty sums squares of hidden units in half precision; one loud sample leaves the range."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2305_fp16_activation_penalty',
             source='own, from practice',
             symptom='inf_loss',
             phase='loss',
             cause='fp16_overflow',
             op='mul',
             op_also=['pow', 'sum'],
             module=None,
             line_marker='# <-- origin',
             first_bad_step=6,
             bad_rows=[0],
             fixes_that_work=['upcast_module', 'fp32', 'bf16', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip', 'lr_down'],
             symptom_also=['nan_loss'])
FIXES = {'upcast_module'}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.fc2 = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(s, x):
        h = s.fc1(x)
        return s.fc2(torch.tanh(h)), h


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(10)
    data[6]["x"][0] *= 2000.0

    def loss_fn(m, b):
        out, h = m(b["x"])
        if fix == "upcast_module":
            h = h.float()
        sq = h * h  # <-- origin
        return F.mse_loss(out.float(), b["y"]) + 1e-6 * sq.float().mean()

    return Case(m, loss_fn, data, B.sgd(m), autocast=torch.float16)
