"""Self-distillation: the centre subtracted from the teacher's logits was allocated with torch.empty and the code that should fill it
runs only in the distributed branch. It is read for the first time when centring is switched on."""
import copy, torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="818_centre_of_the_teacher_from_empty", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, module="centring", line_marker=None, tensor="centring.centre", tensor_kind="buffer",
             first_bad_step=5, latent_from=0, bad_rows=None, fixes_that_work=["init"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"init"}


def empty(*shape):
    t = torch.empty(*shape)
    t.view(torch.int32).fill_(0x7FC0BEEF)          # whatever the allocator left there: here, always the same
    return t


class Centring(nn.Module):
    on = False

    def __init__(s, k, fix):
        super().__init__()
        s.register_buffer("centre", torch.zeros(k) if fix == "init" else empty(k))

    def forward(s, x):
        return x - s.centre if s.on else x


class Dino(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.student = B.mlp(8, 32, 12, nn.GELU)
        s.teacher, s.centring = copy.deepcopy(s.student).requires_grad_(False), Centring(12, fix)

    def forward(s, a, b):
        with torch.no_grad():
            t = torch.softmax(s.centring(s.teacher(b)) / 0.5, -1)
        return -(t * F.log_softmax(s.student(a), -1)).sum(-1).mean()


def make(seed=0, fix=None):
    m, data, g = Dino(fix), B.xy(11), torch.Generator().manual_seed(18)
    for b in data:
        b["x2"] = b["x"] + 0.1 * torch.randn(b["x"].shape, generator=g)

    def before(case, i):
        case.model.centring.on = i >= 5
        with torch.no_grad():
            for p, q in zip(case.model.teacher.parameters(), case.model.student.parameters()):
                p.lerp_(q, 0.01)

    return Case(m, lambda m, b: m(b["x"], b["x2"]), data, torch.optim.AdamW(m.student.parameters(), lr=1e-3), before_step=before)
