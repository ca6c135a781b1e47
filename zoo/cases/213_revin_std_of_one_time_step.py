"""Reversible instance normalisation takes the (unbiased) standard deviation over time; the last chunk of the series has a single
time step, for which it is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="213_revin_std_of_one_time_step", source="https://github.com/DLR-RM/stable-baselines3/issues/325",
             symptom="nan_loss", phase="forward", cause="empty_reduction", op="std", op_also=["var", "std_mean", "var_mean"], module="revin", line_marker="# <-- origin",
             first_bad_step=8, bad_rows=None, fixes_that_work=["biased", "skip_batch"], fixes_that_do_not=["clip", "eps", "lr_down", "zero_nan_grads"])
FIXES = {"biased", "eps"}


class RevIN(nn.Module):
    fix = None

    def __init__(s, c):
        super().__init__()
        s.gain, s.shift = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))

    def forward(s, x):
        mu = x.mean(1, keepdim=True)
        sd = x.std(1, keepdim=True, unbiased=s.fix != "biased")  # <-- origin
        return (x - mu) / (sd + (1e-3 if s.fix == "eps" else 1e-5)) * s.gain + s.shift, mu, sd


class Forecaster(nn.Module):
    def __init__(s):
        super().__init__()
        s.revin, s.rnn, s.out = RevIN(3), nn.LSTM(3, 12, batch_first=True), nn.Linear(12, 3)

    def forward(s, x):
        z, mu, sd = s.revin(x)
        return s.out(s.rnn(z)[0][:, -1]) * sd[:, 0] + mu[:, 0]


def loss_fn(m, b):
    return F.huber_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Forecaster(), torch.Generator().manual_seed(2)
    m.revin.fix = fix
    data = [dict(x=torch.randn(5, 1 if i == 8 else 10, 3, generator=g).cumsum(1), y=torch.randn(5, 3, generator=g)) for i in range(11)]
    return Case(m, loss_fn, data, B.adam(m))
