"""Feature distillation with the usual recipe for looking into a network: a forward hook that stores output.detach(). The same hook serves teacher and student, so the hint loss, most
of the total, is a number as far as the student is concerned: only the few labels train it."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1307_hint_features_from_a_detaching_hook", source="constructed from the forum recipe activation[name] = output.detach()", symptom="silent", phase="loss",
             cause="detached_graph", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: detach in the hook of the student", objects="no: after the first backward yes (the hint loss has no grad_fn)"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["keep_graph"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"keep_graph"}


def signal(case, i, r):
    """the hint loss, most of the total, has no graph"""
    return "hint" in case.extra and not case.extra["hint"]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    teacher, m = S.Classifier(), S.Classifier()
    opt = torch.optim.Adam(teacher.parameters(), lr=1e-2)
    for b in S.classes(80, seed=1):
        opt.zero_grad()
        S.ce(teacher, b).backward()
        opt.step()
    teacher.requires_grad_(False).eval()
    feats, extra = {}, {"teacher": teacher}

    def save(name, keep):
        def hook(mod, inp, out):
            feats[name] = out if keep else out.detach()  # <-- origin
        return hook

    teacher.fc2.register_forward_hook(save("teacher", False))
    m.fc2.register_forward_hook(save("student", bool(fix)))

    def hint(m, x):
        with torch.no_grad():
            teacher(x)
        z = m(x)
        return z, F.mse_loss(feats["student"], feats["teacher"])

    def loss_fn(m, b):
        z, h = hint(m, b["x"])
        extra["hint"] = h.requires_grad
        return 0.1 * F.cross_entropy(z[:4], b["y"][:4]) + h      # a quarter of the rows has a label

    test = S.cat(S.classes(16, seed=99))

    def quality(c):                                # hint loss relative to the variance of the teacher's features
        h = S.in_eval(m, lambda: hint(m, test["x"])[1])
        return h / float(feats["teacher"].var(0).mean())

    return SCase(m, loss_fn, S.classes(150), torch.optim.Adam(m.parameters(), lr=5e-3), quality=quality, extra=extra)
