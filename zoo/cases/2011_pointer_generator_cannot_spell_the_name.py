"""Pointer-generator: P(w) = p_gen * vocab + (1 - p_gen) * copy. A name outside the vocabulary that the source does not hold has probability 0."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2011_pointer_generator_cannot_spell_the_name", source="written for the unseen set, no public report",
             symptom="inf_loss", phase="loss", cause="log_zero", op="log", module=None, line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[3], fixes_that_work=["eps", "clamp", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "clamp"}


class PointerGen(nn.Module):
    def __init__(s, V=20, extra=6, d=16):
        super().__init__()
        s.V, s.extra = V, extra
        s.embed, s.gru = nn.Embedding(V + extra, d), nn.GRU(d, d, batch_first=True)
        s.attn, s.vocab, s.gate = nn.Linear(d, d), nn.Linear(d, V), nn.Linear(d, 1)

    def forward(s, src):
        h, last = s.gru(s.embed(src))
        q = last[0]
        a = torch.softmax((h * s.attn(q)[:, None]).sum(-1), -1)
        gen = torch.sigmoid(s.gate(q))
        p = torch.cat([gen * torch.softmax(s.vocab(q), -1), torch.zeros(len(src), s.extra)], 1)
        return p.scatter_add(1, src, (1 - gen) * a)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = PointerGen()

    def loss_fn(m, b):
        p = m(b["src"]).gather(1, b["y"][:, None]).squeeze(1)
        if fix == "eps":
            p = p + 1e-9
        if fix == "clamp":
            p = p.clamp(min=1e-9)
        return -p.log().mean()  # <-- origin

    g = torch.Generator().manual_seed(12)
    data = []
    for k in range(8):
        src = torch.randint(0, 26, (6, 8), generator=g)
        data.append(dict(src=src, y=src[:, 4].clone()))
    data[4]["src"][3] = torch.tensor([1, 2, 3, 21, 22, 5, 6, 7])
    data[4]["y"][3] = 25
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
