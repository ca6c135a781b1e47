"""A NaN was replaced by a loss without gradient, and the weights moved all the same.

What it sees
    The loss is finite and every gradient is exactly zero, while earlier steps had gradients; the update moved the
    weights; and the step, run again, makes a NaN that its loss does not show.

Why it hurts
    The batch seems to be skipped, but momentum and weight decay still move the weights, and no log shows the NaN.

Smallest example
    if loss.isnan(): loss = 0.0 * sum(p.sum() for p in model.parameters())
    # fixed
    if loss.isnan(): continue   # on all ranks together

What to do
    Leave out the update of that batch instead, on all ranks together, and find out where the NaN comes from.

Safety
    It changes nothing. A loss that is zero by itself, such as a satisfied margin, makes no NaN and is not reported.

References
    https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

from ...records.rules import Rule
from ..observations.observed_run import NotAsked, ObservedRun, Suspicion
from ..observations.step_observation import Gradient, StepObservation

RULE = Rule(
    "SY412", "loss_replaced", "A NaN was replaced by a loss without gradient, and the weights moved all the same."
)


def suspect(run: ObservedRun) -> Suspicion | None:
    """Looks at the last step; asks the owner of the steps only where everything else fits."""
    observed = run.last
    learned = any(earlier.grad_norm > 0 for earlier in run.steps[:-1])
    updated = observed.stepped and observed.entering and observed.backward_ran and observed.update_norm > 0
    if not (updated and learned and observed.grad_norm == 0 and observed.loss_finite):
        return None
    if not run.ask.hides_a_nan():
        return None
    names = tuple(observed.entering)
    return Suspicion(symptom="silent", step=observed.step, kind="neutralised", names=names, code=RULE.code)


class _Hiding(NotAsked):
    def hides_a_nan(self) -> bool:
        return True


def _run(ask: NotAsked) -> ObservedRun:
    def step(number: int, norm: float) -> StepObservation:
        return StepObservation(
            step=number,
            terms={"loss": norm},
            stepped=True,
            gradients={"head": Gradient("head", True, norm, norm)},
            entering={"head": norm},
            updates={"head": 1e-3},
        )

    return ObservedRun(ask, [step(0, 1.0), step(1, 0.0)])


def SPECIMEN() -> ObservedRun:
    return _run(_Hiding())


def NEAR_MISS() -> ObservedRun:
    """The margin of this batch is satisfied: the loss is zero, and no NaN is behind it."""
    return _run(NotAsked())
