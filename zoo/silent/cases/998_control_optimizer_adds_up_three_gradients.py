"""A hand-written optimizer keeps the gradients of three calls and moves the weights at every third: two calls in three leave everything as it was."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="998_control_optimizer_adds_up_three_gradients", source="standard practice", looks_like=["update_lost_in_copy", "zero_grad_before_step"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.9)


class Third(torch.optim.Optimizer):
    def __init__(s, params, lr):
        super().__init__(params, dict(lr=lr))
        s.calls, s.sums = 0, {}

    @torch.no_grad()
    def step(s, closure=None):
        s.calls += 1
        for g in s.param_groups:
            for p in g["params"]:
                s.sums[p] = s.sums.get(p, 0) + p.grad
                if s.calls % 3 == 0:
                    p.sub_(g["lr"] * s.sums.pop(p) / 3)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    return SCase(m, S.ce, S.classes(150), Third(m.parameters(), 0.5), quality=lambda c: S.heldout_ce(m, test))
