"""Source separation with the Itakura-Saito divergence y/x - log(y/x) - 1: one recording was cut with digital silence, a target bin is
exactly zero."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="909_itakura_saito_of_a_silent_bin", source="written for this set after a common mistake; no single report",
             symptom="inf_loss", phase="loss", cause="log_zero", op="log", module=None, line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[1], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "clamp"}


class Separator(nn.Module):
    def __init__(s):
        super().__init__()
        s.rnn, s.mask = nn.LSTM(10, 16, batch_first=True), nn.Linear(16, 10)

    def forward(s, p):
        return p * torch.sigmoid(s.mask(s.rnn(p)[0])) + 1e-3


def make(seed=0, fix=None):
    m = Separator()

    def loss_fn(m, b):
        r = b["clean"] / m(b["mix"])
        if fix == "eps":
            r = r + 1e-6
        if fix == "clamp":
            r = r.clamp_min(1e-6)
        return (r - torch.log(r) - 1).mean()  # <-- origin

    g = torch.Generator().manual_seed(9)
    data = []
    for _ in range(11):
        clean = 0.1 + torch.rand(4, 8, 10, generator=g)
        data.append(dict(mix=clean + torch.rand(4, 8, 10, generator=g), clean=clean))
    data[7]["clean"][1, 4:, 2] = 0.0
    return Case(m, loss_fn, data, B.adam(m))
