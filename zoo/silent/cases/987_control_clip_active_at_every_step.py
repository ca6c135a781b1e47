"""CONTROL: a plain recurrent network, clipped at 0.5 at nearly every step (as a rule two- to tenfold), with a rate that was tuned together with it; sequences grow longer during the run (curriculum), so the loss jumps up now and then."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="987_control_clip_active_at_every_step", source="standard practice (clip 0.25 in the classic LSTM language models)", looks_like=["clip_throttles", "vanishing_gradient"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.4)


class Sum(nn.Module):
    def __init__(s):
        super().__init__()
        s.rnn, s.out = nn.RNN(1, 32, batch_first=True), nn.Linear(32, 1)

    def forward(s, x):
        return s.out(s.rnn(x)[0][:, -1])[:, 0]


def series(n, T, seed):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        x = torch.randn(32, T, 1, generator=g)
        out.append({"x": x, "y": 2 * x.sum((1, 2)) / 2})
    return out


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Sum(), S.cat(series(8, 6, 99))
    data = [b for k, T in enumerate((2, 3, 4, 5, 6)) for b in series(60, T, k)]
    return SCase(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9), clip_norm=0.5, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
