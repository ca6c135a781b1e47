"""An LSTM reads raw prices in cents (about 200000) to predict tomorrow's direction. Every gate sits at 0 or 1 and the cell at its end, for every input: the net sees nothing of
the last days."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="530_lstm_reads_prices_in_cents", source="constructed: unscaled inputs into a recurrent net", symptom="silent", phase="forward", cause="saturated_activation", op=None, module="lstm", bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, tensors=["lstm.weight_ih_l0"],
             static_visible=dict(source="no", objects="yes: inputs of 2e5 into an LSTM; hidden state takes the same few values for every row"),
             quality_limit=0.3, margin=1.4, fixes_that_work=["relative_to_the_mean"], fixes_that_do_not=["lr_up", "lr_down", "clip"])
FIXES = {"relative_to_the_mean"}


class Direction(nn.Module):
    def __init__(s, scale):
        super().__init__()
        s.scale, s.lstm, s.out = scale, nn.LSTM(1, 24, batch_first=True), nn.Linear(24, 1)

    def forward(s, p):
        if s.scale:
            p = (p - p.mean(1, keepdim=True)) / 2e3
        h, _ = s.lstm(p[..., None])  # <-- origin
        return s.out(h[:, -1]).squeeze(-1)


def prices(n, seed, bs=32, T=8):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        p = 2e5 + 2e3 * torch.randn(bs, T, generator=g)
        out.append({"p": p, "up": (p[:, -1] < p.mean(1)).float()})          # reverts to its mean
    return out


def loss_fn(m, b):
    return F.binary_cross_entropy_with_logits(m(b["p"]), b["up"])


def signal(case, i, r):
    """the last hidden state hardly differs between rows although the inputs do"""
    if i < 0:
        return False
    with torch.no_grad():
        h = case.model.lstm((case.batches[i]["p"] if not case.model.scale else (case.batches[i]["p"] - 2e5) / 2e3)[..., None])[0][:, -1]
    return float(h.std(0).max()) < 1e-3


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Direction(bool(fix)), S.cat(prices(12, 88))
    return SCase(m, loss_fn, prices(100, 5), torch.optim.Adam(m.parameters(), lr=1e-2), quality=lambda c: S.in_eval(m, lambda: ((m(test["p"]) > 0) != (test["up"] > 0)).float().mean()))
