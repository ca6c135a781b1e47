"""CONTROL: a BIO tagger's CRF forbids transitions with -inf; every state keeps a legal predecessor, so the forward recursion and its gradient are sound."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="883_control_forbidden_tag_transitions_of_a_crf", source="https://github.com/kmkurn/pytorch-crf", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[], nonfinite_in_passing=True)

INF = float("-inf")


class CRF(nn.Module):
    def __init__(s):
        super().__init__()
        s.trans = nn.Parameter(0.1 * torch.randn(3, 3))
        legal = torch.zeros(3, 3)
        legal[0, 2] = INF                          # O -> I
        s.register_buffer("legal", legal, persistent=False)
        s.register_buffer("start", torch.tensor([0.0, 0.0, INF]), persistent=False)

    def forward(s, em, tags):
        t = s.trans + s.legal
        a = em[:, 0] + s.start
        gold = em[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for k in range(1, em.shape[1]):
            a = torch.logsumexp(a[:, :, None] + t, 1) + em[:, k]
            gold = gold + t[tags[:, k - 1], tags[:, k]] + em[:, k].gather(1, tags[:, k:k + 1]).squeeze(1)
        return (torch.logsumexp(a, 1) - gold).mean()


class Tagger(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.rnn, s.out, s.crf = nn.Embedding(30, 12), nn.LSTM(12, 12, batch_first=True, bidirectional=True), nn.Linear(24, 3), CRF()

    def forward(s, ids, tags):
        return s.crf(s.out(s.rnn(s.emb(ids))[0]), tags)


def make(seed=0, fix=None):
    m, g = Tagger(), torch.Generator().manual_seed(83)
    data = []
    for _ in range(12):
        tags = torch.zeros(5, 9, dtype=torch.long)
        for r in range(5):
            k = int(torch.randint(0, 6, (1,), generator=g))
            tags[r, k], tags[r, k + 1] = 1, 2
        data.append(dict(ids=torch.randint(0, 30, (5, 9), generator=g), tags=tags))
    return Case(m, lambda m, b: m(b["ids"], b["tags"]), data, B.adam(m, 1e-2), healthy=lambda log: log[-1].loss < log[0].loss and all(r.grad_ok for r in log))
