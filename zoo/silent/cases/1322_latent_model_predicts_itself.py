"""A world model without pixels: the encoder maps observations to latents, the dynamics predicts the next latent, and the target is the same encoder on the next observation, with its gradient.
Nothing else anchors the latents: the cheapest way to be predictable is to be constant. The loss goes to 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
TRUTH = dict(id="1322_latent_model_predicts_itself", source="constructed; the collapse that stop-gradient, reward or reconstruction terms prevent in latent world models", symptom="silent", phase="loss",
             cause="representation_collapse", op=None, module="enc", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=38,
             static_visible=dict(source="yes: latent prediction is the only term", objects="no: after some steps yes (spread of the latents shrinks to a fraction)"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["reconstruct"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"reconstruct"}


class World(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
        s.dyn = nn.Sequential(nn.Linear(4 + 2, 32), nn.ReLU(), nn.Linear(32, 4))
        s.dec = nn.Linear(4, 10)

    def forward(s, obs, act):
        z = s.enc(obs)
        return z, s.dyn(torch.cat([z, act], -1))


def spread(z):
    return float(z.std(0).mean())


def signal(case, i, r):
    """the latents of different observations are a fifth apart of what they were"""
    with torch.no_grad():
        now = spread(case.model.enc(case.batches[max(i, 0)]["obs"]))
    first = case.extra.setdefault("spread0", now)
    return i >= 0 and now < 0.2 * first


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = World(), torch.Generator().manual_seed(42)
    view, push = torch.randn(4, 10, generator=g) / 2, torch.randn(2, 4, generator=g) / 2

    def transitions(n):
        st, act = torch.randn(n, 4, generator=g), torch.randn(n, 2, generator=g)
        nxt = 0.8 * st.roll(1, -1) + act @ push
        return {"obs": st @ view, "act": act, "next": nxt @ view, "state": st}

    data, test = [transitions(32) for _ in range(250)], transitions(512)

    def loss_fn(m, b):
        z, pred = m(b["obs"], b["act"])
        loss = F.mse_loss(pred, m.enc(b["next"]))  # <-- origin
        if fix:
            loss = loss + F.mse_loss(m.dec(z), b["obs"])
        return loss

    def quality(c):                                # what a linear probe cannot read of the state when the latents carry noise of 0.05
        gq = torch.Generator().manual_seed(1)
        with torch.no_grad():
            z = m.enc(test["obs"])
        z = torch.cat([z + 0.05 * torch.randn(z.shape, generator=gq), torch.ones(len(z), 1)], 1)
        w = torch.linalg.lstsq(z, test["state"]).solution
        return float(F.mse_loss(z @ w, test["state"]) / test["state"].var())

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=3e-3), quality=quality)
