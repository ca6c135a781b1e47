"""Self-supervised pairs: two noisy views of a sample are pulled together, nothing pushes different samples apart (no negatives, no stop-gradient, no variance term). The loss goes to 0 and every input is mapped to one point."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="914_pull_without_push", source="constructed", symptom="silent", phase="loss", cause="representation_collapse", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=20, static_visible=dict(source="yes: only the positive term", objects="no: after some steps yes (cosine between different samples)"),
             quality_limit=0.9, margin=1.5, fixes_that_work=["negatives"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"negatives"}


class Tower(nn.Module):
    def __init__(s):
        super().__init__()
        s.net, s.proj = nn.Sequential(nn.Linear(12, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2)), nn.Linear(48, 16)

    def forward(s, x):
        return F.normalize(s.proj(s.net(x)), dim=-1)


def spread(m, x):
    """mean cosine between different samples"""
    with torch.no_grad():
        z = m(x)
        return float((z @ z.T).sum() - len(z)) / (len(z) * (len(z) - 1))


def signal(case, i, r):
    return i >= 20 and spread(case.model, case.batches[0]["a"]) > 0.98


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, test = Tower(), torch.Generator().manual_seed(2), S.cat(S.classes(8, seed=99))["x"]
    data = [{k: b["x"] + 0.3 * torch.randn(b["x"].shape, generator=g) for k in "ab"} for b in S.classes(100, bs=32)]

    def loss_fn(m, b):
        za, zb = m(b["a"]), m(b["b"])
        if fix:
            return F.cross_entropy(za @ zb.T / 0.2, torch.arange(len(za)))
        return (2 - 2 * (za * zb).sum(-1)).mean()  # <-- origin

    return SCase(m, loss_fn, data, torch.optim.AdamW(m.parameters(), lr=3e-3), quality=lambda c: spread(m, test))
