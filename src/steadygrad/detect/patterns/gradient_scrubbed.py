"""A non-finite gradient was made harmless, and the weights moved all the same.

What it sees
    Backward gave a NaN or an infinity, the optimizer received finite numbers in its place, and moved the parameter.

Why it hurts
    With its gradient set to zero the batch seems to be skipped, but momentum and weight decay still move the weights
    by what they remember. Where most batches are bad the run drifts without learning.

Smallest example
    for p in model.parameters(): torch.nan_to_num_(p.grad, nan=0.0)   # then optimizer.step()
    # fixed
    if not all(torch.isfinite(p.grad).all() for p in model.parameters()): continue   # no step()

What to do
    Skip the whole update: leave out `optimizer.step()` for that batch, or let a guard refuse it.

Safety
    It changes nothing. A loop that clears non-finite gradients and makes no update is not reported.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nan_to_num.html
"""

from __future__ import annotations

import math

from ...records.rules import Rule
from ..observations.observed_run import NotAsked, ObservedRun, Suspicion
from ..observations.step_observation import Gradient, StepObservation

RULE = Rule(
    "SY411", "gradient_scrubbed", "A non-finite gradient was made harmless, and the weights moved all the same."
)


def suspect(run: ObservedRun) -> Suspicion | None:
    """Pure; looks at the last step."""
    observed = run.last
    bad = observed.bad_gradients
    if not (bad and observed.stepped and not observed.bad_after):
        return None
    harmless = all(math.isfinite(observed.entering.get(name, 0.0)) for name in bad)
    moved = any(observed.updates.get(name, 0.0) > 0 for name in bad)
    if not (harmless and moved):
        return None
    return Suspicion(symptom="silent", step=observed.step, kind="neutralised", names=tuple(bad), code=RULE.code)


def _run(update: float) -> ObservedRun:
    step = StepObservation(
        step=4,
        terms={"loss": 1.0},
        stepped=True,
        gradients={"head": Gradient("head", True, math.nan, math.nan)},
        entering={"head": 0.0},
        updates={"head": update},
    )
    return ObservedRun(NotAsked(), [step])


def SPECIMEN() -> ObservedRun:
    return _run(update=1e-3)


def NEAR_MISS() -> ObservedRun:
    """Scrubbed, and an optimizer without momentum moved nothing."""
    return _run(update=0.0)
