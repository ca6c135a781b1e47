"""A Trainer class logs the gradient norm after backward; its log() 'resets' with model.zero_grad(set_to_none=False) and only then comes optimizer.step(). RMSprop
still moves every weight (weight decay, normalised by its own root mean square): the weights walk towards 0, the loss stays where it was."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="901_metrics_call_clears_before_step", source="constructed", symptom="silent", phase="loop",
             cause="zero_grad_before_step", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes, two calls deep: log() clears, and stands between backward and step", objects="no"),
             quality_limit=0.7, margin=1.5, fixes_that_work=["clear_at_start"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"clear_at_start"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.gru, s.out = nn.GRU(3, 24, batch_first=True), nn.Linear(24, 3)

    def forward(s, x):
        return s.out(s.gru(x)[0][:, -1])


def data(n, seed, bs=16, T=10):
    """which of three channels rises over time"""
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        y = torch.randint(0, 3, (bs,), generator=g)
        x = 0.5 * torch.randn(bs, T, 3, generator=g)
        x += F.one_hot(y, 3)[:, None] * torch.linspace(-1, 1, T)[None, :, None]
        out.append({"x": x, "y": y})
    return out


def signal(case, i, r):
    """zero_grad between backward and step"""
    return bool(r) and "backward zero step" in " ".join(r.events)


class Trainer:
    def __init__(s, model, optimizer, clear_at_start):
        s.model, s.optimizer, s.clear_at_start, s.history = model, optimizer, clear_at_start, []

    def log(s, loss):
        s.history.append((float(loss.detach()), float(sum(p.grad.pow(2).sum() for p in s.model.parameters()).sqrt())))
        if not s.clear_at_start:
            s.model.zero_grad(set_to_none=False)  # <-- origin

    def fit_one(s, b):
        if s.clear_at_start:
            s.model.zero_grad(set_to_none=False)
        loss = S.ce(s.model, b)
        loss.backward()
        s.log(loss)
        s.optimizer.step()
        return loss


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Net(), S.cat(data(16, 1))
    opt = torch.optim.RMSprop(m.parameters(), lr=2e-3, momentum=0.5, weight_decay=1e-4)
    t = Trainer(m, opt, bool(fix))
    return SCase(m, S.ce, data(80, 0), opt, step=lambda case, b, i: t.fit_one(b), quality=lambda c: S.heldout_ce(m, test))
