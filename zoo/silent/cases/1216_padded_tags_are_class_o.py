"""NER-like tagger: words are padded with 0 and tags as well, but tag 0 is the ordinary class 'O' and ignore_index stays at -100. More than nine of ten positions in
the mean are padding, trivially right; the real words get a fraction of the gradient."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1216_padded_tags_are_class_o", source="constructed", symptom="silent", phase="loss",
             cause="padding_in_loss", op="nll_loss", module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="hint: labels padded with 0", objects="yes: all padding positions (ids == 0) carry the label 0"),
             quality_limit=0.8, margin=1.5, fixes_that_work=["pad_with_ignore_index"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"pad_with_ignore_index"}
PAD, TAGS, T = 0, 9, 64


class Tagger(nn.Module):
    def __init__(s, V=32, d=24):
        super().__init__()
        s.embed, s.fc, s.head = nn.Embedding(V, d, padding_idx=PAD), nn.Linear(d, 32), nn.Linear(32, TAGS)

    def forward(s, ids):
        return s.head(torch.tanh(s.fc(s.embed(ids))))


def signal(case, i, r):
    b = case.batches[0]
    pad = b["ids"] == PAD
    return float((pad & (b["labels"] != -100)).float().mean()) > 0.5


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]).flatten(0, 1), b["labels"].flatten(), ignore_index=-100)


def collate(rows, pad_tag):
    ids, tags = torch.full((len(rows), T), PAD), torch.full((len(rows), T), pad_tag)
    for k, w in enumerate(rows):
        ids[k, :len(w)], tags[k, :len(w)] = w, (w * 7) % TAGS
    return {"ids": ids, "labels": tags}


def corpus(n, pad_tag, seed):
    g = torch.Generator().manual_seed(seed)
    return [collate([torch.randint(1, 32, (int(torch.randint(2, 7, (1,), generator=g)),), generator=g) for _ in range(16)], pad_tag) for _ in range(n)]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Tagger(), S.cat(corpus(8, -100, 99))
    data = corpus(60, -100 if fix else 0, 3)  # <-- origin
    return SCase(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
