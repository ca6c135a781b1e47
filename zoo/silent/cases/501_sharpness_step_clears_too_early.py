"""Sharpness-aware minimisation: ascend, second backward, descend. The descent helper 'cleans up' before it lets the base optimizer step, so the
base optimizer sees zeros; only its weight decay is left."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="501_sharpness_step_clears_too_early", source="constructed; neighbour: https://github.com/cloneofsimo/lora/issues/263", symptom="silent",
             phase="loop", cause="zero_grad_before_step", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: zero_grad directly before step", objects="no"),
             quality_limit=0.9, margin=1.5, fixes_that_work=["clear_after"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"clear_after"}


class Sharpness:
    def __init__(s, base, rho=0.05, tidy_first=True):
        s.base, s.rho, s.tidy_first, s.shift = base, rho, tidy_first, {}

    def params(s):
        return [p for g in s.base.param_groups for p in g["params"] if p.grad is not None]

    @torch.no_grad()
    def ascend(s):
        ps = s.params()
        n = torch.sqrt(sum(p.grad.pow(2).sum() for p in ps)) + 1e-12
        for p in ps:
            s.shift[p] = p.grad * (s.rho / n)
            p.add_(s.shift[p])
        s.base.zero_grad()

    @torch.no_grad()
    def descend(s):
        for p in s.params():
            p.sub_(s.shift.pop(p))
        if s.tidy_first:
            s.base.zero_grad(set_to_none=False)  # <-- origin
            s.base.step()
        else:
            s.base.step()
            s.base.zero_grad(set_to_none=False)


def signal(case, i, r):
    """the optimizer steps and no parameter has a gradient other than zero"""
    return bool(r) and r.stepped and r.grad_norm == 0.0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    opt = torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    sam = Sharpness(opt, tidy_first=not fix)

    def step(case, b, i):
        loss = S.ce(m, b)
        loss.backward()
        sam.ascend()
        S.ce(m, b).backward()
        sam.descend()
        return loss

    return SCase(m, S.ce, S.classes(80), opt, step=step, quality=lambda c: S.heldout_ce(m, test))
