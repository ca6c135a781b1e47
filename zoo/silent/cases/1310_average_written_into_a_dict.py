"""Variational autoencoder with an average of the weights for sampling. update() walks over ema.state_dict() and assigns state[k] = decay * state[k] + ...: that puts new tensors into
the dict that state_dict() has just made, and nobody loads it. The average stays the network that was drawn."""
import copy, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
TRUTH = dict(id="1310_average_written_into_a_dict", source="constructed from the pattern sd = ema.state_dict(); sd[k] = ...", symptom="silent", phase="loop",
             cause="ema_never_updated", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: assignment into the result of state_dict()", objects="no: after a step yes (average equals the initial weights, model does not)"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["load_back"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"load_back"}


class Vae(nn.Module):
    def __init__(s, d=16, z=3):
        super().__init__()
        s.enc, s.mu, s.lv = nn.Sequential(nn.Linear(d, 32), nn.ReLU()), nn.Linear(32, z), nn.Linear(32, z)
        s.dec = nn.Sequential(nn.Linear(z, 32), nn.ReLU(), nn.Linear(32, d))

    def forward(s, x):
        h = s.enc(x)
        mu, lv = s.mu(h), s.lv(h)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        return s.dec(z), mu, lv


def loss_fn(m, b):
    out, mu, lv = m(b["x"])
    return F.mse_loss(out, b["x"]) * 16 - 0.05 * (1 + lv - mu ** 2 - lv.exp()).sum(1).mean()


def signal(case, i, r):
    """the model has moved, its average not at all"""
    now = [p.detach().clone() for p in case.artefact.parameters()]
    first = case.extra.setdefault("ema0", now)
    return i >= 0 and r.update_norm > 0 and all(torch.equal(p, q) for p, q in zip(now, first))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Vae(), torch.Generator().manual_seed(30)
    ema, mix = copy.deepcopy(m).requires_grad_(False), torch.randn(3, 16, generator=g)
    data = [{"x": torch.randn(32, 3, generator=g) @ mix + 0.1 * torch.randn(32, 16, generator=g)} for _ in range(250)]
    test = torch.randn(512, 3, generator=g) @ mix

    @torch.no_grad()
    def update(decay=0.95):
        state = ema.state_dict()
        for k, v in m.state_dict().items():
            state[k] = decay * state[k] + (1 - decay) * v  # <-- origin
        if fix:
            ema.load_state_dict(state)

    def quality(c):                                # reconstruction error of the average through its mean code, relative to the variance of the data
        with torch.no_grad():
            return float(F.mse_loss(ema.dec(ema.mu(ema.enc(test))), test) / test.var())

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=3e-3), after_step=lambda case, i: update(), artefact=ema, quality=quality)
