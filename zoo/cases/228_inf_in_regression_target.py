"""The target is log(price) and one price in the table is 0: the label of one row is -inf before the model ever runs. An LSTM with
in-place residual updates."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="228_inf_in_regression_target", source="common report: log-transformed targets with a zero in the table",
             symptom="inf_loss", phase="data", cause="bad_input", op=None, op_also=["mse_loss", "sub"], module=None, line_marker=None, input_key="log_price",
             first_bad_step=7, bad_rows=[1], fixes_that_work=["log1p_target", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"log1p_target"}


class Pricer(nn.Module):
    def __init__(s):
        super().__init__()
        s.rnn, s.mix, s.out = nn.LSTM(3, 10, batch_first=True), nn.Linear(10, 10), nn.Linear(10, 1)

    def forward(s, x):
        h = s.rnn(x)[0][:, -1].clone()
        h += torch.tanh(s.mix(h.clone()))
        return s.out(h)[:, 0]


def loss_fn(m, b):
    return F.mse_loss(m(b["history"]), b["log_price"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Pricer(), torch.Generator().manual_seed(3)
    data = []
    for i in range(10):
        price = torch.rand(6, generator=g) * 5 + 0.1
        if i == 7:
            price[1] = 0.0
        data.append(dict(history=torch.randn(6, 5, 3, generator=g), log_price=torch.log1p(price) if fix else torch.log(price)))
    return Case(m, loss_fn, data, B.sgd(m, 1e-2))
