"""nn.Embedding.from_pretrained(vectors): the vector file knows a fifth of the vocabulary, the other rows are zero and were to be learnt. freeze=True is
the default: they stay zero."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="519_word_vectors_of_a_fifth_of_the_words", source="https://github.com/huggingface/optimum-graphcore/pull/304", symptom="silent", phase="state", cause="frozen_by_mistake", op=None,
             module="words", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1, tensors=["words.weight"],
             static_visible=dict(source="yes: from_pretrained without freeze=False", objects="yes: a frozen table most of whose rows are zero"),
             named=dict(kind="never_moves", names=["words.weight"]),
             quality_limit=0.7, margin=1.5, fixes_that_work=["freeze_false"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"freeze_false"}
V = 50


def bags(n, seed, bs=24):
    g, w = torch.Generator().manual_seed(seed), torch.randn(V, 3, generator=torch.Generator().manual_seed(2))
    w[:10] *= 0.2
    out = []
    for _ in range(n):
        ids = torch.randint(0, V, (bs, 6), generator=g)
        out.append({"ids": ids, "y": w[ids].sum(1).argmax(-1)})
    return out


class Bag(nn.Module):
    def __init__(s, vectors, **kw):
        super().__init__()
        s.words = nn.Embedding.from_pretrained(vectors, **kw)  # <-- origin
        s.mlp = nn.Sequential(nn.Linear(vectors.shape[1], 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(s, ids):
        return s.mlp(s.words(ids).mean(1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]), b["y"])


def signal(case, i, r):
    w = case.model.words.weight
    return not w.requires_grad and float((w == 0).all(-1).float().mean()) > 0.5


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    vectors = torch.zeros(V, 12)
    vectors[:10] = torch.randn(10, 12)
    m, test = Bag(vectors, **({"freeze": False} if fix else {})), S.cat(bags(16, 88))
    return SCase(m, loss_fn, bags(120, 5), torch.optim.Adam([p for p in m.parameters() if p.requires_grad], lr=1e-2), quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
