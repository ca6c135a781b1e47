"""The detectors of a live step on an observed one, and the patience that several steps allow.

An overflow of a dynamic loss scale may last a few steps, and a buffer may be bad for one.
"""

from __future__ import annotations

import math

from ...policy import Policy
from ...records import Finding
from ..detectors.non_finite import (
    non_finite_buffer,
    non_finite_gradient,
    non_finite_loss,
    non_finite_optimizer_state,
    non_finite_parameter,
    non_finite_term,
)
from ..history import History
from ..observations.observed_run import ObservedRun, Suspicion
from ..observations.step_observation import StepObservation

SCALER_PATIENCE = 12
"""Overflows in a row a dynamic scaler may need to find its scale."""
_POLICY = Policy.named("balanced")
_EMPTY = History()


def suspect_loss_or_gradient(run: ObservedRun) -> Suspicion | None:
    """A loss, a term of it, or a gradient that is not finite, unless a dynamic loss scale is about to come down."""
    observed = run.last
    reading = observed.reading()
    found = non_finite_loss.detect(reading, _EMPTY, _POLICY) or non_finite_term.detect(reading, _EMPTY, _POLICY)
    if found is not None:
        bad = tuple(name for name, value in observed.terms.items() if not math.isfinite(value))
        symptom = "nan_loss" if any(math.isnan(observed.terms[name]) for name in bad) else "inf_loss"
        return _suspicion(symptom, observed, bad, found)
    if observed.bad_gradients:
        found = non_finite_gradient.detect(reading, _EMPTY, _POLICY)
        return None if _scale_comes_down(run) else _suspicion("nan_grad", observed, observed.bad_gradients, found)
    if observed.bad_entering:
        return _suspicion("nan_grad", observed, observed.bad_entering, None)
    return None


def _scale_comes_down(run: ObservedRun) -> bool:
    observed = run.last
    # Counted in micro-batches, while the scale comes down once in a window.
    waiting = observed.dynamic_scale and run.overflows <= SCALER_PATIENCE * observed.accumulation
    return waiting and not observed.bad_after and run.ask.overflow_is_the_scalers()


def suspect_state(run: ObservedRun) -> Suspicion | None:
    """A weight or a moment that is not finite after the step; a buffer only if it stays so."""
    observed = run.last
    if observed.bad_gradients:
        return None
    reading = observed.reading()
    for detector, kind, symptom in (
        (non_finite_parameter, "parameter", "nan_param"),
        (non_finite_optimizer_state, "optimizer", "nan_state"),
    ):
        found = detector.detect(reading, _EMPTY, _POLICY)
        if found is not None:
            return _suspicion(symptom, observed, observed.bad_of(kind), found)
    return _bad_buffer(run)


def _bad_buffer(run: ObservedRun) -> Suspicion | None:
    """A buffer that is bad while all else is finite.

    One that was so from the start is a value that nothing has measured yet: it is reported when something reads it. One
    that a step has just made bad may be a figure for a log, overwritten by the next: it is reported if it stays so.
    """
    observed = run.last
    from_start = {key for key in run.steps[0].bad_before if key[0] == "buffer"}
    bad = [key for key in observed.bad_after if key not in from_start]
    names = tuple(name for _, name in bad)
    before, run.buffer_in_doubt = run.buffer_in_doubt, None
    if before is not None and set(before.names) & set(names):
        return before
    if not bad:
        return None
    found = non_finite_buffer.detect(observed.reading(), _EMPTY, _POLICY)
    suspicion = _suspicion("nan_state", observed, names, found)
    if set(bad) & set(observed.bad_before):
        return suspicion
    run.buffer_in_doubt = suspicion
    return None


def suspect_harm_of_a_buffer(run: ObservedRun) -> Suspicion | None:
    """A buffer that the last step made bad, and that does harm in this one."""
    observed, doubt = run.last, run.buffer_in_doubt
    harmed = not observed.loss_finite or observed.bad_gradients or observed.bad_entering
    read = doubt is not None and set(doubt.names) & {name for _, name in observed.bad_before}
    return doubt if harmed and read else None


def suspect_buffer_in_doubt(run: ObservedRun) -> Suspicion | None:
    """A buffer that the very last step made bad."""
    return run.buffer_in_doubt


def _suspicion(
    symptom: str, observed: StepObservation, names: list[str] | tuple[str, ...], found: Finding | None
) -> Suspicion:
    code = found.code if found is not None else non_finite_gradient.RULE.code
    return Suspicion(symptom=symptom, step=observed.step, kind="non_finite", names=tuple(names), code=code)
