"""CONTROL: a Wasserstein critic with clipped weights against fixed samples: its loss is negative and keeps growing in size from near zero to hundreds. It has no lower bound that matters."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="987_control_wasserstein_critic_runs_away", source="https://arxiv.org/abs/1701.07875", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    m, g = B.mlp(8, 48, 1, nn.ReLU), torch.Generator().manual_seed(87)
    data = [dict(real=8 * torch.randn(16, 8, generator=g) + 30.0, fake=8 * torch.randn(16, 8, generator=g)) for _ in range(24)]

    def before(case, i):
        with torch.no_grad():
            for p in case.model.parameters():
                p.clamp_(-0.4, 0.4)

    return Case(m, lambda m, b: m(b["fake"]).mean() - m(b["real"]).mean(), data, torch.optim.RMSprop(m.parameters(), lr=5e-3), before_step=before,
                healthy=lambda log: log[-1].loss < -100 and all(r.grad_ok for r in log))
