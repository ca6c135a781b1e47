"""An average kept in half precision is written at each step and never changes.

What it sees
    Three steps in a row wrote a half-precision weight that needs no gradient, and its bits stayed the same, while the
    rest of the model was moved.

Why it hurts
    A moving average that adds 0.0002 of the new weights loses it below half a unit in the last place: the teacher, or
    the weights that are evaluated, stay what they were at the start.

Smallest example
    teacher.mul_(0.9998).add_(student, alpha=0.0002)   # teacher in bfloat16
    # fixed
    teacher = teacher.float(); teacher.mul_(0.9998).add_(student, alpha=0.0002)

What to do
    Keep the average in float32.

Safety
    It changes nothing. A frozen weight that is not written is not reported.

References
    https://github.com/pytorch/pytorch/issues/120376
"""

from __future__ import annotations

from ...records.rules import Rule
from ..observations.observed_run import PATIENCE, NotAsked, ObservedRun, Suspicion
from ..observations.step_observation import StepObservation

RULE = Rule(
    "SY416", "average_never_follows", "An average kept in half precision is written at each step and never changes."
)


def suspect(run: ObservedRun) -> Suspicion | None:
    """Pure; looks back from the last step."""
    if run.last.update_norm <= 0:
        return None
    in_vain = {name: _writes_in_vain(run, name) for name in run.last.followers}
    still = tuple(name for name, count in in_vain.items() if count >= PATIENCE)
    if not still:
        return None
    since = run.steps[-in_vain[still[0]]].step
    return Suspicion(symptom="silent", step=since, kind="written_unmoved", names=still, code=RULE.code)


def _writes_in_vain(run: ObservedRun, name: str) -> int:
    """How many of the last steps in a row wrote this weight and left its bits as they were; zero where the write before
    them changed it, because then it does follow, if slowly."""
    count = 0
    for before, now in zip(reversed(run.steps[:-1]), reversed(run.steps), strict=False):
        if name not in before.followers or name not in now.followers:
            return count
        (old_version, old_bits), (version, bits) = before.followers[name], now.followers[name]
        if version == old_version:
            return count
        if bits != old_bits:
            return 0
        count += 1
    return count


def _run(*bits: int) -> ObservedRun:
    steps = [
        StepObservation(step=number, stepped=True, updates={"student": 1e-3}, followers={"teacher": (number, value)})
        for number, value in enumerate(bits)
    ]
    return ObservedRun(NotAsked(), steps)


def SPECIMEN() -> ObservedRun:
    return _run(7, 7, 7, 7)


def NEAR_MISS() -> ObservedRun:
    """It changed once in four steps: slow, and it follows."""
    return _run(6, 7, 7, 7, 7)
