"""CONTROL: series are padded with NaN and packed by length, so the padding is never read."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="393_control_nan_behind_the_packed_end", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.rnn, s.out = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 1)

    def forward(s, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return s.out(s.rnn(packed)[1][0])


def loss_fn(m, b):
    return nn.functional.smooth_l1_loss(m(b["x"], b["lengths"]).squeeze(-1), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Net(), torch.Generator().manual_seed(5), []
    for _ in range(9):
        x, n = torch.randn(5, 7, 3, generator=g), torch.randint(1, 8, (5,), generator=g)
        x[torch.arange(7)[None] >= n[:, None]] = float("nan")
        data.append(dict(x=x, lengths=n, y=torch.randn(5, generator=g)))
    return Case(m, loss_fn, data, torch.optim.RMSprop(m.parameters(), lr=1e-3))
