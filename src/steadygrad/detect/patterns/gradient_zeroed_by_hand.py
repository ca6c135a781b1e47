"""A part that had learned gets its gradients zeroed, as if that froze it, and its weights move on.

What it sees
    In two steps in a row backward gave a parameter a gradient, the optimizer received exact zeros, and moved the
    parameter; earlier it had received gradients.

Why it hurts
    Momentum and weight decay go on moving what was meant to be frozen, away from where it had been trained to.

Smallest example
    for p in model.encoder.parameters(): p.grad.zero_()   # then optimizer.step()
    # fixed
    model.encoder.requires_grad_(False)

What to do
    Freeze it with `requires_grad_(False)` and `p.grad = None`, or take it out of the optimizer.

Safety
    It changes nothing. Zeros that backward itself made are not reported.

References
    https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation
"""

from __future__ import annotations

from ...records.rules import Rule
from ..observations.observed_run import NotAsked, ObservedRun, Suspicion
from ..observations.step_observation import Gradient, StepObservation

RULE = Rule(
    "SY413",
    "gradient_zeroed_by_hand",
    "A part that had learned gets its gradients zeroed, as if that froze it, and its weights move on.",
)


def suspect(run: ObservedRun) -> Suspicion | None:
    """Pure; looks at the last two steps, and for gradients before them."""
    last = run.recent(2)
    if not last or not all(observed.stepped for observed in last):
        return None
    names = [name for name in run.last.entering if all(_was_zeroed(observed, name) for observed in last)]
    learned = [name for name in names if any(each.entering.get(name, 0.0) > 0 for each in run.steps[:-2])]
    if not learned:
        return None
    since = next(each.step for each in reversed(run.steps) if each.entering.get(learned[0], 0.0) > 0) + 1
    return Suspicion(
        symptom="silent", step=since, kind="neutralised", names=tuple(learned), detail="zeroed", code=RULE.code
    )


def _was_zeroed(observed: StepObservation, name: str) -> bool:
    """Whether backward gave this parameter a gradient, the optimizer got exact zeros, and moved it all the same."""
    gradient = observed.gradients.get(name)
    given = gradient is not None and gradient.present and gradient.finite and gradient.norm > 0
    return given and observed.entering.get(name, 1.0) == 0.0 and observed.updates.get(name, 0.0) > 0


def _run(given: float) -> ObservedRun:
    def step(number: int, norm: float, entering: float) -> StepObservation:
        return StepObservation(
            step=number,
            terms={"loss": 1.0},
            stepped=True,
            gradients={"encoder": Gradient("encoder", True, norm, norm)},
            entering={"encoder": entering},
            updates={"encoder": 1e-3},
        )

    return ObservedRun(NotAsked(), [step(0, 1.0, 1.0), step(1, given, 0.0), step(2, given, 0.0)])


def SPECIMEN() -> ObservedRun:
    return _run(given=1.0)


def NEAR_MISS() -> ObservedRun:
    """Backward itself gives zeros: another task's turn."""
    return _run(given=0.0)
