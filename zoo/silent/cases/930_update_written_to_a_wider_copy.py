"""A hand-written SGD computes in float64 'for accuracy': p.data.double() is a new tensor, the update is made there and thrown away. Nothing moves."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="930_update_written_to_a_wider_copy", source="constructed", symptom="silent", phase="optimizer", cause="update_lost_in_copy", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, static_visible=dict(source="yes: in-place method on a cast", objects="no"),
             named=dict(kind="never_moves", names=["fc1.weight", "head.weight"]), quality_limit=0.8, margin=1.5, fixes_that_work=["copy_back"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"copy_back"}


class WideSGD(torch.optim.Optimizer):
    def __init__(s, params, lr, fix):
        super().__init__(params, dict(lr=lr))
        s.fix = fix

    @torch.no_grad()
    def step(s, closure=None):
        for g in s.param_groups:
            for p in g["params"]:
                if p.grad is not None:
                    w = p.data.double()
                    w.add_(p.grad.double(), alpha=-g["lr"])  # <-- origin
                    if s.fix:
                        p.copy_(w)


def signal(case, i, r):
    return bool(r) and r.stepped and r.grad_norm > 0 and r.update_norm == 0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    return SCase(m, S.ce, S.classes(80), WideSGD(m.parameters(), 0.3, fix), quality=lambda c: S.heldout_ce(m, test))
