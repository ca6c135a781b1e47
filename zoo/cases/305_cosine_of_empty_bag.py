"""Cosine similarity by hand between two towers of word bags; one query consists of padding alone, its bag is the zero vector."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="305_cosine_of_empty_bag", source="common report: cosine similarity without an eps",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="match", line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[2], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Match(nn.Module):
    fix = None

    def forward(s, a, b):
        dot = torch.einsum("nd,nd->n", a, b)
        lengths = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
        if s.fix == "eps":
            lengths = lengths + 1e-6
        return dot / lengths  # <-- origin


class Towers(nn.Module):
    def __init__(s):
        super().__init__()
        s.words, s.match = nn.EmbeddingBag(40, 10, mode="sum", padding_idx=0), Match()

    def forward(s, q, d):
        return s.match(s.words(q), s.words(d))


def loss_fn(m, b):
    return F.binary_cross_entropy_with_logits(5 * m(b["q"], b["d"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Towers(), torch.Generator().manual_seed(5)
    m.match.fix = fix
    data = [dict(q=torch.randint(1, 40, (5, 4), generator=g), d=torch.randint(1, 40, (5, 6), generator=g), y=torch.randint(0, 2, (5,), generator=g).float()) for _ in range(8)]
    data[3]["q"][2] = 0
    return Case(m, loss_fn, data, B.adam(m, 1e-2))
