"""Sequence tagging with 3 to 6 tokens padded to 40. Padding has label 0, which is also a real tag, and the loss has neither mask nor ignore_index: nine tenths of it are padding, the loss falls at once, the tags are hardly learnt."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="921_padding_tagged_as_class_zero", source="constructed", symptom="silent", phase="loss", cause="padding_in_loss", op="cross_entropy", module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=-1, static_visible=dict(source="yes: cross_entropy over all positions, mask unused", objects="yes: 9 of 10 positions have mask 0 and a label >= 0"),
             quality_limit=0.3, margin=3.0, fixes_that_work=["mask"], fixes_that_do_not=["lr_down", "clip"])
FIXES = {"mask"}
T, V, K = 40, 20, 5


class Tagger(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.rnn, s.tag = nn.Embedding(V, 16, padding_idx=0), nn.LSTM(16, 16, batch_first=True, bidirectional=True), nn.Linear(32, K)

    def forward(s, ids):
        return s.tag(s.rnn(s.emb(ids))[0])


def sentences(n, seed, bs=16):
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        ids = torch.randint(1, V, (bs, T), generator=g)
        mask = torch.arange(T) < torch.randint(3, 7, (bs, 1), generator=g)
        ids = ids * mask
        out.append({"ids": ids, "mask": mask, "tags": (ids % K) * mask})
    return out


def masked(m, b):
    return F.cross_entropy(m(b["ids"])[b["mask"]], b["tags"][b["mask"]])


def signal(case, i, r):
    """the loss depends on labels where the mask is 0, and those are the majority"""
    b = case.batches[0]
    other = dict(b, tags=torch.where(b["mask"], b["tags"], (b["tags"] + 1) % K))
    with torch.no_grad():
        return float(b["mask"].float().mean()) < 0.5 and float((case.loss_fn(case.model, b) - case.loss_fn(case.model, other)).abs()) > 1e-6


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Tagger(), S.cat(sentences(8, 1))

    def loss_fn(m, b):
        if fix:
            return masked(m, b)
        return F.cross_entropy(m(b["ids"]).flatten(0, 1), b["tags"].flatten())  # <-- origin

    return SCase(m, loss_fn, sentences(60, 0), torch.optim.SGD(m.parameters(), lr=0.3, momentum=0.9), quality=lambda c: S.in_eval(m, lambda: masked(m, test)))
