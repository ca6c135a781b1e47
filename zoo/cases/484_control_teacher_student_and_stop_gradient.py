"""CONTROL: BYOL-style training: the teacher gets no gradient and moves by EMA, the loss is negative, predictor and projector are fine."""
import copy
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="484_control_teacher_student_and_stop_gradient", source="standard practice (BYOL)", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Byol(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 8))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.predictor = nn.Linear(8, 8)

    @torch.no_grad()
    def follow(self, tau=0.99):
        for t, s in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            t.lerp_(s, 1 - tau)

    def forward(self, a, b):
        p = self.predictor(self.student(a))
        with torch.no_grad():
            z = self.teacher(b)
        return -F.cosine_similarity(p, z, dim=-1).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Byol(), torch.Generator().manual_seed(1), []
    for _ in range(12):
        x = torch.randn(8, 10, generator=g)
        data.append((x + 0.1 * torch.randn(8, 10, generator=g), x + 0.1 * torch.randn(8, 10, generator=g)))
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=2e-3)
    return Case(m, lambda m, b: m(*b), data, opt, before_step=lambda c, i: c.model.follow() if i else None)
