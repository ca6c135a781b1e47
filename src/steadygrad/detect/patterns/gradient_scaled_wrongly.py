"""The gradients that reach the optimizer have another size than the loss gave them.

What it sees
    In two updates in a row the norm that entered the optimizer was more than four times, or less than a quarter of,
    the norm after backward with the loss scale taken away and the loop's clipping applied.

Why it hurts
    Updates are too long or too short by that factor, the same at every step, so that no curve shows a jump.

Smallest example
    clip_grad_norm_(model.parameters(), 1.0); scaler.unscale_(optimizer)   # clipped first, then divided by 65536
    # fixed
    scaler.unscale_(optimizer); clip_grad_norm_(model.parameters(), 1.0)

What to do
    Unscale before clipping, unscale once, and divide by the number of micro-batches once.

Safety
    It changes nothing. Gradients that are not finite, or exactly zero, are not compared.

References
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
"""

from __future__ import annotations

import math

from ...records.rules import Rule
from ..observations.observed_run import NotAsked, ObservedRun, Suspicion
from ..observations.step_observation import Gradient, StepObservation

RULE = Rule(
    "SY410",
    "gradient_scaled_wrongly",
    "The gradients that reach the optimizer have another size than the loss gave them.",
)
SIZE_MISMATCH = 4.0
"""Gradients entering the optimizer this many times too small or too large were scaled wrongly."""


def suspect(run: ObservedRun) -> Suspicion | None:
    """Pure; looks at the last two updates."""
    last = [observed for observed in run.steps if observed.stepped and observed.entering][-2:]
    ratios = [ratio for observed in last if (ratio := _ratio(observed)) is not None]
    if len(last) < 2 or len(ratios) < len(last):
        return None
    too_large = all(ratio > SIZE_MISMATCH for ratio in ratios)
    if not too_large and not all(ratio < 1 / SIZE_MISMATCH for ratio in ratios):
        return None
    detail = f"{ratios[0]:.3g} times the expected size"
    return Suspicion(symptom="silent", step=last[0].step, kind="mis_sized", detail=detail, code=RULE.code)


def _ratio(observed: StepObservation) -> float | None:
    """The norm that entered over the norm that should have; None where they cannot be compared."""
    true = observed.grad_norm / (observed.loss_scale or 1.0)
    expected = min(true, observed.max_grad_norm) if observed.max_grad_norm else true
    actual = math.hypot(*observed.entering.values())
    if not (math.isfinite(true) and math.isfinite(actual)) or expected <= 0:
        return None
    return actual / expected


def _run(entering: float) -> ObservedRun:
    steps = [
        StepObservation(
            step=number,
            terms={"loss": 1.0},
            stepped=True,
            loss_scale=4096.0,
            max_grad_norm=0.5,
            gradients={"head": Gradient("head", True, 4096.0, 4096.0)},
            entering={"head": entering},
        )
        for number in range(2)
    ]
    return ObservedRun(NotAsked(), steps)


def SPECIMEN() -> ObservedRun:
    return _run(entering=0.5 / 4096.0)


def NEAR_MISS() -> ObservedRun:
    """Unscaled, then clipped to 0.5, as it should be."""
    return _run(entering=0.5)
