"""Siamese network with cosine_embedding_loss: neighbouring rows form the pairs and the target is torch.ones for all of them, equal class or not. The loss falls
to zero because all inputs are mapped to one direction."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1222_every_pair_is_positive", source="constructed", symptom="silent", phase="loss",
             cause="representation_collapse", op=None, module="", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=40,
             static_visible=dict(source="yes: constant target 1", objects="no"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["target_from_class"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"target_from_class"}


def apart(z, y):
    """mean cosine of pairs of different classes"""
    z = F.normalize(z, dim=-1)
    return float((z @ z.T)[y[:, None] != y[None]].mean())


def signal(case, i, r):
    """embeddings of different inputs are (nearly) parallel while the loss is close to 0"""
    if i < 40:
        return False
    b = case.batches[i]
    with torch.no_grad():
        return apart(case.model(b["x"]), b["y"]) > 0.95


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16)), S.cat(S.classes(16, seed=99))

    def loss_fn(m, b):
        z, y = m(b["x"]), b["y"]
        z1, z2, same = z[0::2], z[1::2], y[0::2] == y[1::2]
        target = torch.where(same, 1.0, -1.0) if fix else torch.ones(len(z1))  # <-- origin
        return F.cosine_embedding_loss(z1, z2, target)

    def quality(c):
        return S.in_eval(m, lambda: apart(m(test["x"]), test["y"]))

    return SCase(m, loss_fn, S.classes(80, bs=32), torch.optim.Adam(m.parameters(), lr=5e-3), quality=quality)
