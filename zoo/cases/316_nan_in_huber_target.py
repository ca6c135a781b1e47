"""Multi-step forecasts with a Huber loss; one target series has a gap that was read as NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="316_nan_in_huber_target", source="common report: missing readings in the target window",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, op_also=["huber_loss"], module=None, line_marker=None, input_key="future",
             first_bad_step=4, bad_rows=[0, 3], fixes_that_work=["skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = set()


class Forecaster(nn.Module):
    def __init__(s):
        super().__init__()
        s.rnn, s.out = nn.LSTM(2, 10, batch_first=True), nn.Linear(10, 3)

    def forward(s, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return s.out(s.rnn(packed)[1][0][0])


def loss_fn(m, b):
    return F.huber_loss(m(b["past"], b["lengths"]), b["future"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Forecaster(), torch.Generator().manual_seed(8)
    data = [dict(past=torch.randn(5, 7, 2, generator=g), lengths=torch.randint(2, 8, (5,), generator=g), future=torch.randn(5, 3, generator=g)) for _ in range(8)]
    data[4]["future"][0, 2] = data[4]["future"][3, 0] = float("nan")
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
