"""Forecasting with an LSTM: the targets come out of df[['y']].values as (B, 1), forward() ends in .squeeze(-1) and returns (B,). nn.L1Loss broadcasts to (B, B): every forecast is compared with
every target, and the best answer is the median of all."""
import torch, torch.nn as nn
from protocol_silent import SCase
TRUTH = dict(id="1318_squeezed_forecast_against_a_column", source="constructed; torch's warning 'Using a target size that is different to the input size'", symptom="silent", phase="loss",
             cause="broadcasting_loss_shape", op="l1_loss", module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: squeeze(-1) with column targets", objects="no: in the first batch yes (shape of the loss's operands)"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["keep_column"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"keep_column"}


class Lstm(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.rnn, s.out, s.fix = nn.LSTM(1, 16, batch_first=True), nn.Linear(16, 1), fix

    def forward(s, x):
        z = s.out(s.rnn(x)[0][:, -1])
        return z if s.fix else z.squeeze(-1)  # <-- origin


def signal(case, i, r):
    if i < 0:
        return False
    with torch.no_grad():
        return case.model(case.batches[i]["x"]).shape != case.batches[i]["y"].shape


def windows(n, bs, g):
    out = []
    for _ in range(n):
        ph, a = torch.rand(bs, 1, generator=g) * 6.28, 0.5 + torch.rand(bs, 1, generator=g)
        s = a * torch.sin(0.6 * torch.arange(13) + ph) + 0.03 * torch.randn(bs, 13, generator=g)
        out.append({"x": s[:, :12, None], "y": s[:, 12:]})
    return out


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, crit = Lstm(fix), torch.Generator().manual_seed(38), nn.L1Loss()
    data, test = windows(200, 16, g), windows(1, 512, g)[0]

    def quality(c):                                # absolute error relative to that of the median
        with torch.no_grad():
            return float((m(test["x"]).flatten() - test["y"].flatten()).abs().mean() / (test["y"] - test["y"].median()).abs().mean())

    return SCase(m, lambda m, b: crit(m(b["x"]), b["y"]), data, torch.optim.Adam(m.parameters(), lr=5e-3), quality=quality)
