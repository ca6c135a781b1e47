"""CONTROL: an embedding with sparse=True: most rows have no gradient in any one step and the gradient tensor is sparse."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="285_control_sparse_embedding_gradients", source="https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Skipgram(nn.Module):
    def __init__(s):
        super().__init__()
        s.centre, s.context = nn.Embedding(200, 8, sparse=True), nn.Embedding(200, 8, sparse=True)

    def forward(s, c, o, n):
        v = s.centre(c)
        return (v * s.context(o)).sum(-1), torch.einsum("bd,bkd->bk", v, s.context(n))


def loss_fn(m, b):
    pos, neg = m(b["c"], b["o"], b["n"])
    return -(F.logsigmoid(pos) + F.logsigmoid(-neg).sum(-1)).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Skipgram(), torch.Generator().manual_seed(4)
    data = [dict(c=torch.randint(0, 200, (8,), generator=g), o=torch.randint(0, 200, (8,), generator=g), n=torch.randint(0, 200, (8, 4), generator=g)) for _ in range(12)]
    return Case(m, loss_fn, data, torch.optim.SparseAdam(m.parameters(), lr=1e-2))
