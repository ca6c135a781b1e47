"""CONTROL: the average starts at step 30 with a copy of the weights and is updated every fifth step only; it is what is kept."""
import copy, torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1284_control_ema_starts_late", source="standard practice", looks_like=["ema_never_updated", "reference_aliased"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.6)
START, EVERY = 30, 5


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    ema = copy.deepcopy(m).eval().requires_grad_(False)

    @torch.no_grad()
    def after(case, i):
        if i == START:
            ema.load_state_dict(m.state_dict())
        elif i > START and i % EVERY == 0:
            for s, p in zip(ema.parameters(), m.parameters()):
                s.lerp_(p, 0.2)

    return SCase(m, S.ce, S.classes(80), torch.optim.Adam(m.parameters(), lr=1e-2), after_step=after, artefact=ema, extra={"ema": ema},
                 quality=lambda c: S.heldout_ce(ema, test))
