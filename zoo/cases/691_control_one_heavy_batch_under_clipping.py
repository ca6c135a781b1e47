"""CONTROL: heavy-tailed insurance claims: one batch has a loss two hundred times and a gradient norm tens of times larger than any before. The
loop clips, as it was built to, and goes on."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="691_control_one_heavy_batch_under_clipping", source="common sight: a single spike of the gradient norm, clipped", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Claims(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(6, 4)
        self.net = nn.Sequential(nn.Linear(9, 24), nn.SiLU(), nn.Linear(24, 1))

    def forward(self, kind, x):
        return self.net(torch.cat([self.kind(kind), x], 1)).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Claims(), torch.Generator().manual_seed(9), []
    for i in range(14):
        kind, x = torch.randint(0, 6, (16,), generator=g), torch.randn(16, 5, generator=g)
        y = x[:, 0].exp() * 0.5 + 0.2 * kind
        if i == 8:
            y[3], y[11] = 90.0, 60.0
        data.append(((kind, x), y))
    return Case(m, lambda m, b: F.mse_loss(m(*b[0]), b[1]), data, torch.optim.AdamW(m.parameters(), lr=2e-3), clip_norm=1.0)
