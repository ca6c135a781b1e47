"""Self-distillation with an EMA teacher kept in bf16: at decay 0.9998 every step of the average is below half an ulp, and the teacher stays
what it was at the start although the student moves."""
import copy
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="443_teacher_in_bf16_never_follows", source="common report: EMA in low precision does not update", symptom="silent", phase="optimizer", cause="lost_update", op=None,
             module="teacher", module_also=["teacher.fc1", "teacher.fc2", None], line_marker=None, first_bad_step=1, bad_rows=None, fixes_that_work=["fp32", "fp32_state"],
             fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"fp32", "fp32_state"}


class Dino(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.student = B.mlp(8, 16, 6)
        self.teacher = copy.deepcopy(self.student).to(dtype).requires_grad_(False)

    @torch.no_grad()
    def update_teacher(self, decay=0.9998):
        for t, s in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            t.mul_(decay).add_(s.to(t.dtype), alpha=1 - decay)

    def forward(self, a, b):
        with torch.no_grad():
            target = self.teacher(b.to(next(self.teacher.parameters()).dtype)).float().softmax(-1)
        return F.cross_entropy(self.student(a), target)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Dino(torch.float32 if fix in ("fp32", "fp32_state") else torch.bfloat16)
    start = [p.clone() for p in m.teacher.parameters()]
    data = [(b["x"], b["x"] + 0.1) for b in B.xy(10)]
    opt = torch.optim.Adam(m.student.parameters(), lr=3e-3)
    case = Case(m, lambda m, b: m(*b), data, opt, before_step=lambda c, i: c.model.update_teacher() if i else None)
    case.healthy = lambda log: all(r.loss_ok and r.grad_ok for r in log) and sum(int((p != q).sum()) for p, q in zip(m.teacher.parameters(), start, strict=True)) > 0.5 * sum(p.numel() for p in start)
    case.extra["first_bad"] = lambda log: 1
    return case
