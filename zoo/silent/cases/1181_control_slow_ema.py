"""CONTROL: an average with decay 0.999: per step it moves by a thousandth, over the run it does move; its own weights are kept beside the live ones."""
import copy, torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1181_control_slow_ema", source="standard practice", looks_like=["ema_never_updated", "update_lost_in_copy"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.6)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    opt = torch.optim.Adam(m.parameters(), lr=5e-3)
    for b in S.classes(60, seed=1):                # the run so far; the average starts from here
        opt.zero_grad()
        S.ce(m, b).backward()
        opt.step()
    opt.zero_grad()
    ema = copy.deepcopy(m).requires_grad_(False)

    @torch.no_grad()
    def update(case, i):
        for s, p in zip(ema.parameters(), m.parameters()):
            s.lerp_(p, 0.001)

    return SCase(m, S.ce, S.classes(80), opt, after_step=update, artefact=ema, quality=lambda c: S.heldout_ce(ema, test))
