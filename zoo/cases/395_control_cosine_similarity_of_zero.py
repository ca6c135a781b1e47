"""CONTROL: F.cosine_similarity and F.normalize of zero vectors; both have their own floor."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="395_control_cosine_similarity_of_zero", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Towers(nn.Module):
    def __init__(s):
        super().__init__()
        s.words, s.mix = nn.EmbeddingBag(40, 10, mode="sum", padding_idx=0), nn.Linear(10, 10, bias=False)

    def forward(s, q, d):
        a, b = s.mix(s.words(q)), s.mix(s.words(d))
        return F.cosine_similarity(a, b, dim=-1) + (F.normalize(a, dim=-1) * F.normalize(b, dim=-1)).sum(-1)


def loss_fn(m, b):
    return F.binary_cross_entropy_with_logits(5 * m(b["q"], b["d"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Towers(), torch.Generator().manual_seed(5)
    data = [dict(q=torch.randint(1, 40, (5, 4), generator=g), d=torch.randint(1, 40, (5, 6), generator=g), y=torch.randint(0, 2, (5,), generator=g).float()) for _ in range(9)]
    for i, b in enumerate(data):
        b["q"][i % 5] = 0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
