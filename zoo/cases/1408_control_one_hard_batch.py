"""CONTROL: one batch of harder examples costs several times the usual loss; gradients are clipped and the run goes on as before."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1408_control_one_hard_batch", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[],
             source="standard practice")


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.rnn, s.out = nn.GRU(4, 16, batch_first=True), nn.Linear(16, 1)

    def forward(s, x):
        return s.out(s.rnn(x)[0][:, -1])


def loss_fn(m, b):
    return F.smooth_l1_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(8)
    data = []
    for i in range(16):
        x = torch.randn(8, 8, 4, generator=g)
        data.append(dict(x=x, y=x.mean([1, 2]).mul(3)[:, None] + (1.6 if i == 9 else 0.0)))
    return Case(m, loss_fn, data, B.adam(m, 3e-3), clip_norm=1.0, healthy=lambda log: log[9].loss > 3 * log[8].loss and log[-1].loss < 0.5 * log[9].loss)
