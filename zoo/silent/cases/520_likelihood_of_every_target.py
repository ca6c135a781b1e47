"""Mean and log-variance heads end in (B, 1), the targets are (B,): the Gaussian likelihood, written out by hand, scores every mean against all
targets. The best answer is the mean of the batch, with its spread as variance."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="520_likelihood_of_every_target", source="https://github.com/RLinf/RLinf/issues/1568 (kind: (B,1) against (B))", symptom="silent", phase="loss", cause="broadcasting_loss_shape", op="sub", module=None,
             bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="no", objects="no: shapes (16, 1) and (16,) meet in the first loss"),
             quality_limit=0.4, margin=2.0, fixes_that_work=["squeeze"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"squeeze"}


class Demand(nn.Module):
    def __init__(s, squeeze):
        super().__init__()
        s.body, s.mu, s.logvar, s.squeeze = nn.Sequential(nn.Linear(8, 32), nn.Tanh()), nn.Linear(32, 1), nn.Linear(32, 1), squeeze

    def forward(s, x):
        h = s.body(x)
        mu, lv = s.mu(h), s.logvar(h).clamp(-6, 4)
        return (mu.squeeze(-1), lv.squeeze(-1)) if s.squeeze else (mu, lv)


def loss_fn(m, b):
    mu, lv = m(b["x"])
    return 0.5 * (lv + (mu - b["y"]) ** 2 * torch.exp(-lv)).mean()  # <-- origin


def signal(case, i, r):
    """the difference of prediction and target has more elements than either"""
    if i < 0:
        return False
    with torch.no_grad():
        mu, y = case.model(case.batches[i]["x"])[0], case.batches[i]["y"]
    return (mu - y).numel() > max(mu.numel(), y.numel())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Demand(bool(fix)), S.cat(S.regression(16, seed=99))
    return SCase(m, loss_fn, S.regression(120), torch.optim.Adam(m.parameters(), lr=1e-2),
                 quality=lambda c: S.in_eval(m, lambda: (m(test["x"])[0].reshape(-1) - test["y"]).pow(2).mean()))
