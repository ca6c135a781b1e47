"""CONTROL: dense retrieval starts with in-batch negatives and switches to mined near-duplicates at step 8, temperature 0.1. The loss and the
gradient jump by an order of magnitude at once, as planned, and come down again."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="783_control_hard_negatives_from_step_eight", source="usual schedule of dense retrievers (ANCE and after)", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = nn.ModuleDict({"q": nn.Linear(16, 12), "d": nn.Linear(16, 12)}), torch.Generator().manual_seed(92)
    with torch.no_grad():
        m["d"].weight.copy_(m["q"].weight), m["d"].bias.copy_(m["q"].bias)
    data = []
    for i in range(26):
        q = torch.randn(16, 16, generator=g)
        pos = torch.cat([q[:, :8], 0.7 * q[:, 8:] + 0.5 * torch.randn(16, 8, generator=g)], 1)  # the first half of the features decides
        hard = torch.cat([0.7 * q[:, :8] + 0.5 * torch.randn(16, 8, generator=g), q[:, 8:]], 1) if i >= 8 else torch.randn(16, 16, generator=g)
        data.append((q, pos, hard))

    def loss_fn(m, batch):
        q, pos, neg = (F.normalize(m[k](x), dim=-1) for k, x in zip("qdd", batch))
        logits = torch.cat([(q * pos).sum(-1, keepdim=True), (q * neg).sum(-1, keepdim=True)], 1) / 0.1
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))

    return Case(m, loss_fn, data, torch.optim.AdamW(m.parameters(), lr=1e-2), healthy=lambda log: all(r.loss_ok and r.grad_ok for r in log))
