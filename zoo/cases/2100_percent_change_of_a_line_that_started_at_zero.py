"""Forecasting on percentage changes: a product line sold nothing in its first week, the change from zero is infinite and goes into the window."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2100_percent_change_of_a_line_that_started_at_zero", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None, line_marker=None,
             first_bad_step=4, bad_rows=[5], fixes_that_work=["drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = set()


class Forecaster(nn.Module):
    def __init__(s, lines=3):
        super().__init__()
        s.norm, s.rnn, s.out = nn.LayerNorm(lines), nn.GRU(lines, 16, batch_first=True), nn.Linear(16, 1)

    def forward(s, x):
        return s.out(s.rnn(s.norm(x))[0][:, -1]).squeeze(-1)


def loss_fn(m, b):
    return F.huber_loss(m(b["change"]), b["next"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Forecaster()
    g = torch.Generator().manual_seed(8)
    data = []
    for k in range(9):
        sold = 5 + torch.rand(7, 11, 3, generator=g) * 10
        if k == 4:
            sold[5, 0, 1] = 0.0
        change = sold[:, 1:] / sold[:, :-1] - 1
        data.append(dict(change=change[:, :-1].contiguous(), next=change[:, -1].mean(-1)))
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
