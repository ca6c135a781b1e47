"""The EMA update is 's = decay * s + (1 - decay) * p' inside the loop: that binds a local name. The averaged model that will be saved is still the initial one."""
import copy, torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1110_ema_rebinds_local_name", source="constructed from the pattern for s, p in zip(...): s = ...", symptom="silent", phase="loop",
             cause="ema_never_updated", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: assignment to the loop variable", objects="no: after some steps yes (shadow equals the initial weights, model does not)"),
             quality_limit=0.5, margin=1.5, fixes_that_work=["in_place"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"in_place"}


def signal(case, i, r):
    """the model has moved, its average not at all"""
    now = [p.detach().clone() for p in case.artefact.parameters()]
    first = case.extra.setdefault("ema0", now)
    return i >= 0 and r.update_norm > 0 and all(torch.equal(p, q) for p, q in zip(now, first))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    ema = copy.deepcopy(m).requires_grad_(False)

    @torch.no_grad()
    def update(decay=0.95):
        for s, p in zip(ema.parameters(), m.parameters()):
            if fix:
                s.mul_(decay).add_(p, alpha=1 - decay)
            else:
                s = decay * s + (1 - decay) * p  # <-- origin

    return SCase(m, S.ce, S.classes(80), torch.optim.Adam(m.parameters(), lr=1e-2), after_step=lambda case, i: update(), artefact=ema,
                 quality=lambda c: S.heldout_ce(ema, test))
