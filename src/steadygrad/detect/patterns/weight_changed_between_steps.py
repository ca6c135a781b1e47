"""A weight that the last update left small is enormous at the next step.

What it sees
    A weight or a moment is not what the last update left, nothing has written to it since, and the change looks like a
    memory fault: a few neighbouring elements, bits and sizes that no program writes. Or, in a replay, the largest entry
    of a parameter is a million times what it was before the last update, plus what that update can have added.

Why it hurts
    No update computed that value. The loss need not show it, because a bounded function hides it, and the checkpoint
    keeps it.

Smallest example
    model.body.weight.data[1, 2] = 3e30   # between two steps
    # fixed
    model.body.weight.data.copy_(last_good)

What to do
    A live guard restores its exact bits by itself and runs the step again. Look for code that writes to it; if there is
    none and it happens again, test the memory.

Safety
    What a program writes is never undone: a write that autograd counts, one to many elements, a number that is written
    down in a program, or memory that is shared. Large tensors are not compared, and on a
    GPU none without `self_check`; see the architecture page.

References
    https://arxiv.org/abs/2102.11245
"""

from __future__ import annotations

from ...records.rules import Rule
from ..observations.observed_run import NotAsked, ObservedRun, Suspicion
from ..observations.step_observation import StepObservation

RULE = Rule(
    "SY415", "weight_changed_between_steps", "A weight that the last update left small is enormous at the next step."
)
THROWN = 1e6
"""A weight this many times as large as the last update can have left it was changed by something else."""


def suspect(run: ObservedRun) -> Suspicion | None:
    """Pure; compares the last step with the one before it."""
    before = run.steps[-2] if len(run.steps) > 1 else None
    if before is None or not before.stepped:
        return None
    names = tuple(
        name
        for name, size in run.last.largest.items()
        if name in before.largest and size > THROWN * max(before.largest[name] + before.updates.get(name, 0.0), 1.0)
    )
    if not names:
        return None
    return Suspicion(symptom="spike", step=run.last.step, kind="spike", names=names, code=RULE.code)


def _run(update: float) -> ObservedRun:
    first = StepObservation(step=3, stepped=True, largest={"body": 0.5}, updates={"body": update})
    return ObservedRun(NotAsked(), [first, StepObservation(step=4, stepped=True, largest={"body": 3e30})])


def SPECIMEN() -> ObservedRun:
    return _run(update=1e-3)


def NEAR_MISS() -> ObservedRun:
    """The update itself was that long: a rate that is too high, which other rules report."""
    return _run(update=3e30)
