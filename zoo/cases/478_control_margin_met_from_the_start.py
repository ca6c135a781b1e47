"""CONTROL: fine-tuning a ranking model whose margin is already met on the easy batches: loss and gradients are exactly zero for five steps, then hard ones come."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="478_control_margin_met_from_the_start", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = nn.EmbeddingBag(30, 8, mode="mean"), torch.Generator().manual_seed(5), []
    for i in range(12):
        q = torch.stack([torch.randperm(30, generator=g)[:5] for _ in range(5)])
        d = q.flip(1) if i < 5 else torch.randint(0, 30, (5, 5), generator=g)
        data.append(dict(query=q, doc=d))

    def loss_fn(m, b):
        s = F.normalize(m(b["query"]), dim=-1) @ F.normalize(m(b["doc"]), dim=-1).T
        off = s.masked_fill(torch.eye(5, dtype=torch.bool), -2.0)
        return F.relu(off.amax(-1) - s.diagonal() + 0.01).mean()

    return Case(m, loss_fn, data, B.sgd(m, 0.1))
