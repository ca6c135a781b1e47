"""BYOL: the target network has requires_grad False, is no part of the optimizer and follows by EMA at the start of each step."""
import copy
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="587_control_byol_teacher_by_ema", source="https://arxiv.org/abs/2006.07733", symptom="none", phase="none", cause="none",
             op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])
FIXES = set()


def encoder():
    return nn.Sequential(nn.Linear(14, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8))


class BYOL(nn.Module):
    def __init__(self, momentum=0.99):
        super().__init__()
        self.online = encoder()
        self.predictor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def follow(self):
        for t, o in zip(self.target.parameters(), self.online.parameters()):
            t.mul_(self.momentum).add_(o, alpha=1 - self.momentum)

    def forward(self, a, b):
        p = self.predictor(self.online(a))
        with torch.no_grad():
            z = self.target(b)
        return 2 - 2 * F.cosine_similarity(p, z, dim=-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = BYOL()
    views = []
    for _ in range(18):
        x = torch.randn(12, 14)
        views.append((x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)))
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=2e-3)
    return Case(m, lambda m, v: (m(*v).mean() + m(*v[::-1]).mean()) / 2, views, opt, before_step=lambda c, i: i and c.model.follow())
