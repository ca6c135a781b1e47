"""update_ema() skips parameters that do not require gradients ('frozen layers need no average'), but it asks the shadow copy, all of which is frozen.
The averaged model that will be saved is the initial one."""
import copy, torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1210_ema_skips_frozen_shadow", source="constructed", symptom="silent", phase="state",
             cause="ema_never_updated", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: requires_grad of the shadow is asked", objects="no"),
             quality_limit=0.8, margin=1.5, fixes_that_work=["ask_the_model"], fixes_that_do_not=["lr_up", "longer"])
FIXES = {"ask_the_model"}


def signal(case, i, r):
    """the model has moved and the shadow is bit for bit the initial one"""
    now = [p.detach().clone() for p in case.artefact.parameters()]
    w0 = case.extra.setdefault("w0", now)
    return bool(r) and r.update_norm > 0 and all(torch.equal(a, b) for a, b in zip(now, w0))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    ema = copy.deepcopy(m).eval().requires_grad_(False)

    @torch.no_grad()
    def update_ema(decay=0.9):
        for s, p in zip(ema.parameters(), m.parameters()):
            if not (p if fix else s).requires_grad:  # <-- origin
                continue
            s.mul_(decay).add_(p, alpha=1 - decay)

    return SCase(m, S.ce, S.classes(80), torch.optim.Adam(m.parameters(), lr=1e-2), after_step=lambda case, i: update_ema(),
                 artefact=ema, extra={"ema": ema}, quality=lambda c: S.heldout_ce(ema, test))
