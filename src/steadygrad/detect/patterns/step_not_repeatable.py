"""A step that was computed twice from the same state gave two results.

What it sees
    Forward and backward ran a second time on the same batch, from the same weights, buffers and random numbers, and a
    gradient's norm is another one. With `self_check="1%"` only: on that share of all steps, and where a gradient is far
    larger than it ever was.

Why it hurts
    One of the two is wrong: a fault of the machine that no one would have seen, or a kernel that adds up in another
    order each time, so that no run can be repeated.

Smallest example
    total.index_add_(0, index, values)     # on a GPU: added up in another order each time
    # fixed
    torch.use_deterministic_algorithms(True)

What to do
    Read the verdict in the incident: the machine (test the device that it names), a kernel, or a non-deterministic
    operation, for which `torch.use_deterministic_algorithms(True)` has another kernel.

Safety
    The step is computed again and the run goes on. Norms that differ by less than a per cent are reported only by the
    self-check.

References
    https://arxiv.org/abs/2102.11245
    https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

from __future__ import annotations

import math

from ...records.rules import Rule
from ..observations.observed_run import NotAsked, ObservedRun, Suspicion
from ..observations.step_observation import StepObservation

RULE = Rule("SY417", "step_not_repeatable", "A step that was computed twice from the same state gave two results.")


def suspect(run: ObservedRun, *, noise: float = 0.01) -> Suspicion | None:
    """Pure; looks at the last step. `noise` is the share by which two norms may differ."""
    observed = run.last
    apart = {
        name: abs(one - two) / max(abs(one), abs(two))
        for name, (one, two) in observed.twice.items()
        if one != two and math.isfinite(two)
    }
    names = sorted((name for name, gap in apart.items() if not gap <= noise), key=lambda name: -_size(apart[name]))
    if not names:
        return None
    return Suspicion(symptom="silent", step=observed.step, kind="not_repeatable", names=tuple(names), code=RULE.code)


def _size(gap: float) -> float:
    """A first norm that is not finite is the furthest away."""
    return gap if math.isfinite(gap) else math.inf


def _run(second: float) -> ObservedRun:
    return ObservedRun(NotAsked(), [StepObservation(step=9, twice={"body": (120.0, second), "head": (0.5, 0.5)})])


def SPECIMEN() -> ObservedRun:
    return _run(second=0.7)


def NEAR_MISS() -> ObservedRun:
    """The same norm but for the order of a sum: a large gradient, twice."""
    return _run(second=120.1)
