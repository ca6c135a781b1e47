"""loss.backward(); optimizer.zero_grad(); optimizer.step(): the gradients are gone when the step comes."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1103_zero_grad_after_backward", source="constructed from the pattern backward / zero_grad / step", symptom="silent", phase="loop",
             cause="zero_grad_before_step", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: zero_grad between backward and step", objects="no"),
             quality_limit=0.5, margin=1.5, named=dict(kind="never_moves", names=["fc1.weight", "fc2.weight", "head.weight"]),
             fixes_that_work=["zero_grad_first"], fixes_that_do_not=["lr_up", "longer"])
FIXES = {"zero_grad_first"}


def signal(case, i, r):
    return bool(r) and "backward zero step" in " ".join(r.events)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))

    def step(case, b, i):
        if fix:
            case.optimizer.zero_grad()
        loss = S.ce(m, b)
        loss.backward()
        if not fix:
            case.optimizer.zero_grad()  # <-- origin
        case.optimizer.step()
        return loss

    return SCase(m, S.ce, S.classes(60), torch.optim.Adam(m.parameters(), lr=1e-2), step=step, quality=lambda c: S.heldout_ce(m, test))
