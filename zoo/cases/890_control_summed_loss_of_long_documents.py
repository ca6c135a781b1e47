"""CONTROL: the loss is a sum over tokens and documents differ in length by a factor of thirty: loss and gradient norm run from hundreds to tens of thousands and back."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="890_control_summed_loss_of_long_documents", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class LM(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.rnn, s.out = nn.Embedding(40, 24), nn.GRU(24, 24, batch_first=True), nn.Linear(24, 40)

    def forward(s, ids):
        return s.out(s.rnn(s.emb(ids))[0])


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"][:, :-1]).flatten(0, 1), b["ids"][:, 1:].flatten(), reduction="sum")


def make(seed=0, fix=None):
    m, g = LM(), torch.Generator().manual_seed(90)
    data = []
    for i in range(14):
        T = 600 if i in (5, 11) else int(torch.randint(20, 50, (1,), generator=g))
        start = torch.randint(0, 40, (6, 1), generator=g)
        data.append(dict(ids=(start + 3 * torch.arange(T)[None]) % 40))
    return Case(m, loss_fn, data, B.adam(m, 3e-3), healthy=lambda log: log[5].loss > 5 * log[4].loss and log[-1].loss < log[0].loss * 3 and all(r.grad_ok for r in log))
