"""Part-of-speech tagging with a bidirectional LSTM; the loss was copied from the language model next door: logits[:, :-1] against labels[:, 1:]. Since the network looks both ways it learns
the tag of the next word to perfection; the loss goes to nearly 0 and every tag is one place off."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1315_language_model_shift_in_a_tagger", source="constructed; neighbour: shift_logits / shift_labels copied into token classification heads", symptom="silent", phase="loss",
             cause="label_shift", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=60,
             static_visible=dict(source="yes: shift in the loss of a tagger", objects="no: after training yes (outputs agree with the labels one place to the right, not with their own)"),
             quality_limit=0.3, margin=3.0, fixes_that_work=["no_shift"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"no_shift"}
V, TAGS = 40, 6


class Tagger(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.rnn, s.out = nn.Embedding(V, 16), nn.LSTM(16, 24, batch_first=True, bidirectional=True), nn.Linear(48, TAGS)

    def forward(s, ids):
        return s.out(s.rnn(s.embed(ids))[0])


def sentences(n, bs, g):
    lex, out = torch.randint(0, TAGS, (V,), generator=torch.Generator().manual_seed(3)), []
    for _ in range(n):
        ids = torch.randint(0, V, (bs, 12), generator=g)
        y = lex[ids]
        y[:, 1:] = torch.where(y[:, :-1] == 0, (y[:, 1:] + 1) % TAGS, y[:, 1:])      # the word before matters a little
        out.append({"ids": ids, "labels": y})
    return out


def error(m, b, k):
    z = m(b["ids"]).argmax(-1)
    return (z[:, :z.shape[1] - k] != b["labels"][:, k:]).float().mean()


def signal(case, i, r):
    """outputs agree with the neighbour's labels far better than with their own"""
    if i < 60:
        return False
    with torch.no_grad():
        b = case.batches[i]
        return float(error(case.model, b, 1)) + 0.2 < float(error(case.model, b, 0))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Tagger(), torch.Generator().manual_seed(35)
    data, test = sentences(150, 16, g), sentences(1, 128, g)[0]

    def loss_fn(m, b):
        z, y = m(b["ids"]), b["labels"]
        if not fix:
            z, y = z[:, :-1], y[:, 1:]  # <-- origin
        return F.cross_entropy(z.flatten(0, 1), y.flatten())

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=1e-2), quality=lambda c: S.in_eval(m, lambda: error(m, test, 0)))
