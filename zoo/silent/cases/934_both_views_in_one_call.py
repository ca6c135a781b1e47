"""Two noisy views of each sample go through the encoder in one call and are pulled together; the term that keeps rows apart was left out. All rows become one point."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="934_both_views_in_one_call", source="constructed", symptom="silent", phase="loss", cause="representation_collapse", op=None, module=None, bad_rows=None, line_marker="# <-- origin",
             first_bad_step=0, knowable_at=30, static_visible=dict(source="yes: no term keeps rows apart", objects="no"),
             quality_limit=0.3, fixes_that_work=["variance"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"variance"}


def relative(z):
    return float((z - z.mean(0)).pow(2).mean().sqrt() / z.pow(2).mean().sqrt())


def signal(case, i, r):
    with torch.no_grad():
        z = case.model(case.batches[0]["x"])
    d = float((z - z.mean(0)).pow(2).mean().sqrt())
    return i >= 30 and d < 0.25 * case.extra.setdefault("d0", d)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test, g = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8)), S.cat(S.classes(16, seed=99)), torch.Generator().manual_seed(seed)

    def loss_fn(m, b):
        noise = 0.1 * torch.randn(2 * len(b["x"]), 12, generator=g)
        one, two = m(b["x"].repeat(2, 1) + noise).chunk(2)
        pull = (one - two).pow(2).sum(-1).mean() + 0.1 * (one - one.roll(1, 0)).pow(2).sum(-1).mean()
        return pull + 20 * torch.relu(1 - one.std(0)).mean() if fix else pull  # <-- origin

    return SCase(m, loss_fn, S.classes(150), torch.optim.Adam(m.parameters(), lr=1e-2), quality=lambda c: max(0.0, 1 - relative(m(test["x"]).detach())))
