"""fp16 autocast with a hand-made loss scale of 2^24: the scaled gradient does not fit into half precision, from the first step on."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2320_fixed_scale_too_large',
             source='own, from practice',
             symptom='nan_grad',
             phase='backward',
             cause='scaler_misuse',
             op=None,
             op_also=[],
             module='fc2',
             line_marker=None,
             first_bad_step=0,
             bad_rows=None,
             fixes_that_work=['loss_scale', 'fp32', 'bf16'],
             fixes_that_do_not=['clip', 'lr_down', 'skip_batch'],
             cause_also=['fp16_overflow'])
FIXES = {'loss_scale'}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.fc2 = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(s, x):
        return s.fc2(torch.relu(s.fc1(x)))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]).float(), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net()
    data = B.xy(8)
    for b in data:
        b["y"] = b["y"] + 1.0
    return Case(m, loss_fn, data, B.adam(m), autocast=torch.float16, static_scale=128.0 if fix == "loss_scale" else 2.0 ** 24)
