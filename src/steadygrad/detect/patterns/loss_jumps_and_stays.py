"""The loss has jumped, or keeps doubling, and earlier batches do worse than they did.

What it sees
    The loss is five times the highest before it and still high one step on; or it has doubled three times in a row; or
    updates as long as the weights themselves were followed by a loss that stayed up. Batches from before the jump,
    evaluated again, must have a higher loss under the weights of now, or the batch must hold an outlier.

Why it hurts
    The weights have left the region they were trained in. Each further step starts from there.

Smallest example
    torch.optim.SGD(model.parameters(), lr=100.0)
    # fixed
    torch.optim.SGD(model.parameters(), lr=0.01)

What to do
    Lower the rate or add a warm-up; for an outlier, remove the sample. Go back to a checkpoint from before the jump.

Safety
    It changes nothing. A loss that is higher only because the batch is larger or harder is not reported, and neither
    is that of a layer which was initialised again on purpose.

References
    https://arxiv.org/abs/2204.02311
"""

from __future__ import annotations

import itertools
import math

from ...records.rules import Rule
from ..observations.observed_run import PATIENCE, NotAsked, ObservedRun, Suspicion
from ..observations.step_observation import StepObservation, allowed_growth

RULE = Rule(
    "SY205",
    "loss_jumps_and_stays",
    "The loss has jumped, or keeps doubling, and earlier batches do worse than they did.",
)
JUMP = 5.0
"""A loss this many times the largest before it, and still high one step on, is a spike."""
STEPS_BEFORE_SPIKE = 4
"""Losses needed before one of them can stand out."""
LONG_STRIDE = 0.2
"""An update longer than this share of the weights' own norm is no small step."""
OUTLIER = 1e3
"""A batch entry this many times as large as any before it is an outlier, whatever the old batches say."""
ODD = 20.0
"""Where a batch alone is out of line, an entry this many times as large as any in other batches is why."""
RISEN = 2.0
"""An earlier batch whose loss has grown by this much on the weights of now has been harmed."""


def suspect(run: ObservedRun) -> Suspicion | None:
    """Looks at the losses so far; earlier batches are evaluated again only after a jump."""
    return _shown_by_old_batches(run, _spike(run) or _rising(run) or _diverged(run))


def conclude(run: ObservedRun) -> Suspicion | None:
    """A jump in the very last step, which had no time to be confirmed."""
    return _shown_by_old_batches(run, _spike(run, ended=True))


def strides_too_long(run: ObservedRun) -> bool:
    """Every update so far was a good part of the weights' own length, and the loss is no lower for it."""
    steps = [observed for observed in run.steps if observed.stepped]
    long = [observed.update_norm > LONG_STRIDE * observed.weight_norm > 0 for observed in steps]
    return len(steps) >= PATIENCE and all(long) and not steps[-1].loss < 0.9 * steps[0].loss


def _spike(run: ObservedRun, *, ended: bool = False) -> Suspicion | None:
    losses = [abs(observed.loss) for observed in run.steps]
    at = len(losses) - (1 if ended else 2)
    if at < STEPS_BEFORE_SPIKE or not all(math.isfinite(loss) for loss in losses):
        return None
    ceiling = _ceiling(run.steps[:at], run.steps[at])
    if any(observed.loss < 0 for observed in run.steps):
        ceiling *= 10  # a loss that crosses zero has no scale by itself
    if ceiling <= 0 or losses[at] <= JUMP * ceiling:
        return None
    if not ended and losses[-1] <= JUMP / 2 * ceiling and not _foreign(run, at):
        return None
    # The loss shows a step late what an update did: the step whose update was out of line, if one was.
    sizes = [observed.update_norm for observed in run.steps]
    usual = sorted(sizes[: max(at - 1, 1)])[max(at - 1, 1) // 2]
    start = at - 1 if at >= 2 and sizes[at - 1] > 3 * usual else at
    return _suspicion(run.steps[start].step, f"{losses[at]:.3g} after {ceiling:.3g}")


def _rising(run: ObservedRun) -> Suspicion | None:
    """The loss has doubled, and doubled again, and again."""
    steps = run.recent(PATIENCE + 1)
    if not steps or not all(math.isfinite(observed.loss) and observed.loss > 0 for observed in run.steps):
        return None
    doubled = all(now.loss > 2 * before.loss * allowed_growth(before, now) for before, now in itertools.pairwise(steps))
    first, last = steps[0], steps[-1]
    if doubled and last.loss > 2 * JUMP * _ceiling(run.steps[:1], last):
        return _suspicion(first.step, f"{first.loss:.3g} to {last.loss:.3g}")
    return None


def _diverged(run: ObservedRun) -> Suspicion | None:
    """Steps as long as the weights themselves, and a loss that went up and stayed up."""
    steps = run.recent(PATIENCE + 1)
    if not steps or not all(math.isfinite(observed.loss) for observed in run.steps):
        return None
    first = steps[0]
    stride = first.update_norm / first.weight_norm if first.weight_norm else 0.0
    before = run.steps[:-PATIENCE]
    higher = [observed.loss > 1.5 * _ceiling(before, observed) for observed in steps[1:]]
    if (stride > LONG_STRIDE and all(higher)) or (stride > 1.0 and any(higher)):
        return _suspicion(first.step, f"one update moved the weights by {stride:.0%}")
    return None


def _suspicion(step: int, detail: str) -> Suspicion:
    return Suspicion(symptom="spike", step=step, kind="spike", detail=detail, code=RULE.code)


def _shown_by_old_batches(run: ObservedRun, suspicion: Suspicion | None) -> Suspicion | None:
    """A loss that rose because the batches did is no problem: weights that ran away are bad for every batch."""
    if suspicion is None or _outlier(run):
        return suspicion
    if any(observed.step == suspicion.step and _foreign(run, at) for at, observed in enumerate(run.steps)):
        return suspicion
    if _part_was_redrawn(run, suspicion.step):
        return None
    finite = [observed for observed in run.steps if math.isfinite(observed.loss)]
    before = [observed for observed in finite if observed.step < suspicion.step][-PATIENCE:] or finite[:-1][:1]
    asked = [(abs(observed.loss), run.ask.loss_now(observed.step)) for observed in before]
    known = [(then, now) for then, now in asked if now is not None]
    if not known:
        return suspicion
    unharmed = sum(math.isfinite(now) and abs(now) <= RISEN * then for then, now in known)
    return None if 2 * unharmed > len(known) else suspicion


def _part_was_redrawn(run: ObservedRun, step: int) -> bool:
    """Whether a part of the model was written anew just before: a layer reset on purpose starts from a high loss.

    All of it at once is another matter (a checkpoint that does not belong here), and so is a value out of range.
    """
    now = next((observed for observed in run.steps if observed.step == step), None)
    before = next((observed for observed in run.steps if observed.step == step - 1), None)
    if now is None or before is None or not now.written or 2 * len(now.written) > len(now.samples):
        return False
    return all(now.largest[name] <= 100 * max(before.largest[name], 0.1) for name in now.written)


def _outlier(run: ObservedRun) -> bool:
    """Whether one of the last batches holds a number far beyond all that was seen in that place before."""
    recent, before = run.steps[-2:], run.steps[:-2]
    if not before:
        return False
    peaks = {key: max(each.entry_peaks.get(key, 0.0) for each in before) for key in recent[-1].entry_peaks}
    return any(
        observed.entry_peaks.get(key, 0.0) > OUTLIER * peak
        for observed in recent
        for key, peak in peaks.items()
        if peak > 0
    )


def _foreign(run: ObservedRun, at: int) -> bool:
    """Whether a loss that came down again was that of a batch unlike all others: far beyond any jump, as is its
    gradient (a robust loss bounds that), with an entry far beyond all that batches before held in that place."""
    now, before = run.steps[at], run.steps[:at]
    if len(before) < STEPS_BEFORE_SPIKE or abs(now.loss) <= JUMP**3 * _ceiling(before, now):
        return False
    if now.grad_norm <= JUMP**2 * max(observed.grad_norm for observed in before):
        return False
    usual = {key: max(observed.entry_peaks.get(key, 0.0) for observed in before) for key in now.entry_peaks}
    return any(usual[key] > 0 and peak > ODD * usual[key] for key, peak in now.entry_peaks.items())


def _ceiling(before: list[StepObservation], now: StepObservation) -> float:
    """The highest loss so far, lifted where the batch of now is larger than the batch then."""
    return max(abs(observed.loss) * allowed_growth(observed, now) for observed in before)


class _Weights(NotAsked):
    """Every earlier batch has this loss under the weights of now."""

    def __init__(self, loss: float) -> None:
        self._loss = loss

    def loss_now(self, step: int) -> float | None:
        return self._loss


def _run(loss_of_old_batches: float) -> ObservedRun:
    losses = (1.0, 0.9, 1.1, 1.0, 40.0, 50.0)
    steps = [StepObservation(step=step, terms={"loss": loss}, stepped=True) for step, loss in enumerate(losses)]
    return ObservedRun(_Weights(loss_of_old_batches), steps)


def SPECIMEN() -> ObservedRun:
    return _run(loss_of_old_batches=30.0)


def NEAR_MISS() -> ObservedRun:
    """The new batches are harder, and the old ones do as well as ever."""
    return _run(loss_of_old_batches=1.0)
