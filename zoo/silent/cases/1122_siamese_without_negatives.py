"""Self-supervised pairs: the loss is 1 - cosine of two views through the same encoder, with no negatives, no predictor and no stop-gradient. It goes to 0 because
every input is mapped to the same direction."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1122_siamese_without_negatives", source="constructed (the collapse that SimSiam / BYOL avoid by stop-gradient and predictor)", symptom="silent", phase="loss",
             cause="representation_collapse", op=None, module="head", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=8,
             static_visible=dict(source="yes: agreement of two views is the only term", objects="no: after some steps yes (embeddings of different inputs agree)"),
             quality_limit=0.4, margin=2.0, fixes_that_work=["negatives"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"negatives"}


def signal(case, i, r):
    """embeddings of different inputs have a mean cosine above 0.95"""
    z = F.normalize(case.model(case.batches[max(i, 0)]["a"]).detach(), dim=1)
    n = len(z)
    return i >= 0 and float(((z @ z.T).sum() - n) / (n * n - n)) > 0.95


def views(n, seed=0):
    g, out = torch.Generator().manual_seed(500 + seed), []
    for b in S.classes(n, seed=seed, noise=0.7):
        out.append({k: b["x"] + 0.4 * torch.randn(b["x"].shape, generator=g) for k in ("a", "b")})
    return out


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(k=16), S.cat(views(16, seed=99))

    def loss_fn(m, b):
        a, c = F.normalize(m(b["a"]), dim=1), F.normalize(m(b["b"]), dim=1)
        if fix == "negatives":
            return F.cross_entropy(a @ c.T / 0.2, torch.arange(len(a)))
        return 1 - (a * c).sum(1).mean()  # <-- origin

    def quality(c):                                # mean cosine of different inputs; 1 is total collapse
        def f():
            z = F.normalize(m(test["a"]), dim=1)
            return ((z @ z.T).sum() - len(z)) / (len(z) ** 2 - len(z))
        return S.in_eval(m, f)

    return SCase(m, loss_fn, views(80), torch.optim.Adam(m.parameters(), lr=3e-3), quality=quality)
