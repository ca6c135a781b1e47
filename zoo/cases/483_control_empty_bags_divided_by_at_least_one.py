"""CONTROL: bags of instances padded with zeros, some of them empty: the count is clamped to one and the empty bag predicts the prior."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="483_control_empty_bags_divided_by_at_least_one", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi, self.rho, self.score = nn.Linear(4, 12), nn.Linear(12, 2), nn.Linear(12, 1)

    def forward(self, x, mask):
        h = torch.relu(self.phi(x))
        logit = self.score(h).squeeze(-1).masked_fill(~mask, float("-inf"))
        top = logit.amax(-1, keepdim=True)
        w = torch.exp(logit - torch.where(torch.isinf(top), torch.zeros_like(top), top))
        pooled = (w.unsqueeze(-1) * h).sum(1) / w.sum(1, keepdim=True).clamp(min=1e-6)
        mean = (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.rho(pooled + mean)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Bags(), torch.Generator().manual_seed(2), []
    for i in range(10):
        x, n = torch.randn(6, 5, 4, generator=g), torch.randint(0, 6, (6,), generator=g)
        if i == 4:
            n[:] = 0
        mask = torch.arange(5) < n[:, None]
        data.append(dict(x=x * mask[..., None], mask=mask, y=(n > 2).long()))
    return Case(m, lambda m, b: F.cross_entropy(m(b["x"], b["mask"]), b["y"]), data, B.adam(m, 2e-3))
