"""Log-returns: a price of 0 in the table makes one target -inf; the inputs and the model are fine."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1318_infinite_regression_target", source="commonly reported; no link was looked up",
             symptom="inf_loss", phase="data", cause="bad_input", op=None, module=None, line_marker=None, input_key="ret",
             first_bad_step=5, bad_rows=[4], fixes_that_work=["drop_rows", "skip_batch", "nan_to_num_input"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"nan_to_num_input"}


class Forecaster(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv, s.lstm, s.out = nn.Conv1d(3, 8, 3, padding=1), nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 1)

    def forward(s, x):
        return s.out(s.lstm(F.relu(s.conv(x)).transpose(1, 2))[0][:, -1]).squeeze(-1)


def loss_fn(m, b):
    return F.l1_loss(m(b["x"]), b["ret"])


def make(seed=0, fix=None):
    m, g = Forecaster(), torch.Generator().manual_seed(7)
    data = []
    for i in range(10):
        price = torch.rand(6, 2, generator=g) + 0.5
        if i == 5:
            price[4, 1] = 0.0
        ret = torch.log(price[:, 1] / price[:, 0])
        data.append(dict(x=torch.randn(6, 3, 14, generator=g), ret=torch.nan_to_num(ret, neginf=0.0) if fix else ret))
    return Case(m, loss_fn, data, B.adam(m))
