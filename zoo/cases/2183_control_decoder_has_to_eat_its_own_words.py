"""CONTROL: scheduled sampling. For nine steps the decoder is fed the right words, then its own; the loss jumps, as planned, and comes down again."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2183_control_decoder_has_to_eat_its_own_words", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Decoder(nn.Module):
    def __init__(s, V=48, d=24):
        super().__init__()
        s.embed, s.cell, s.out, s.own = nn.Embedding(V, d), nn.GRUCell(d, d), nn.Linear(d, V), False

    def forward(s, ids):
        h, word, out = torch.zeros(len(ids), s.cell.hidden_size), ids[:, 0], []
        for t in range(ids.shape[1] - 1):
            h = s.cell(s.embed(word), h)
            out.append(s.out(h))
            word = out[-1].argmax(-1) if s.own else ids[:, t + 1]
        return torch.stack(out, 1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Decoder()

    def switch(case, i):
        case.model.own = i >= 9

    def loss_fn(m, b):
        return F.cross_entropy(m(b["ids"]).flatten(0, 1), b["ids"][:, 1:].flatten())

    return Case(m, loss_fn, B.lm_data(34, bs=8, T=10, V=48), B.adam(m, 3e-2), before_step=switch)
