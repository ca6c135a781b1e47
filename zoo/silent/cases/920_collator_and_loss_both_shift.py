"""The collator already delivers labels[t] = ids[t + 1]; the loss shifts once more. The recurrent model learns to predict the token after the next, the loss falls as it should, generation is wrong."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="920_collator_and_loss_both_shift", source="constructed", symptom="silent", phase="loss", cause="label_shift", op="cross_entropy", module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=-1, static_visible=dict(source="yes: [:, 1:] on labels that are shifted already", objects="yes: labels of a batch are its ids shifted by one, and the loss shifts"),
             quality_limit=1.5, margin=2.0, fixes_that_work=["shift_once"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"shift_once"}
V = 20


class CharRNN(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.rnn, s.out = nn.Embedding(V, 24), nn.GRU(24, 32, batch_first=True), nn.Linear(32, V)

    def forward(s, ids):
        return s.out(s.rnn(s.emb(ids))[0])


def collate(ids):
    return {"ids": ids[:, :-1], "labels": ids[:, 1:]}


def signal(case, i, r):
    """labels arrive shifted by one, and a model that answers them exactly does not get loss 0"""
    b = case.batches[0]
    oracle = lambda ids: 50.0 * F.one_hot(b["labels"], V).float()
    return torch.equal(b["ids"][:, 1:], b["labels"][:, :-1]) and float(case.loss_fn(oracle, b)) > 1.0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = CharRNN(), collate(S.cat(B.lm_data(16, V=V, seed=9))["ids"])

    def loss_fn(m, b):
        lg, lb = m(b["ids"]), b["labels"]
        if not fix:
            lg, lb = lg[:, :-1], lb[:, 1:]  # <-- origin
        return F.cross_entropy(lg.flatten(0, 1), lb.flatten())

    def quality(c):                                # loss of the next token
        return S.in_eval(m, lambda: F.cross_entropy(m(test["ids"]).flatten(0, 1), test["labels"].flatten()))

    return SCase(m, loss_fn, [collate(b["ids"]) for b in B.lm_data(100, V=V, bs=8)], torch.optim.Adam(m.parameters(), lr=1e-2), quality=quality)
