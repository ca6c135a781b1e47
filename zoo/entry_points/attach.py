"""`sg.attach(...)` around a case's own loop, which stays as it is: the optimizer of a plain loop, or a trainer.

An attached optimizer cannot run a batch again, so it detects and refuses; what it does not diagnose is not asked of it.
"""

from __future__ import annotations

import contextlib
from typing import Any

from .. import protocol
from ..trainers import needs_trainer
from ..truth import LEFT_OUT, Answer, Subject
from .told import answer_of_incident, answer_of_warning, warnings_of


class _Reported(Exception):
    """The guard reported a problem: the rest of the loop is of no interest."""


def attach(subject: Subject) -> Answer:
    """The case's loop with its optimizer attached, until the first incident or warning."""
    import steadygrad as sg

    case = subject.case
    if needs_trainer(case):
        return _attached_trainer(case)
    if case.optimizer is None:
        return Answer(error=f"{LEFT_OUT} no optimizer")
    guard = sg.attach(case.optimizer, model=case.model, scheduler=case.scheduler, scaler=case.scaler)
    last = len(case.batches) - 1
    found: tuple[int, Any] | None = None

    def look(_case: Any, index: int) -> None:
        nonlocal found
        found = found or _reported(guard, index - 1)
        if found is not None and guard.incidents:
            raise _Reported

    try:
        with contextlib.suppress(_Reported, sg.TrainingHalted):
            protocol.train(case, light=True, at_step=look)
        found = found or _reported(guard, last)
    finally:
        guard.close()
    return _answer(guard, found)


def _reported(guard: Any, index: int) -> tuple[int, Any] | None:
    """The batch at which the guard first reported something, and the warning if that is what it was."""
    if guard.incidents:
        return index, None
    warned = warnings_of(getattr(guard, "vitals", ()))
    return (max(index, 0), warned[0]) if warned else None


def _answer(guard: Any, found: tuple[int, Any] | None) -> Answer:
    if found is None:
        return Answer()
    index, warning = found
    if not guard.incidents:
        return answer_of_warning(warning, index)
    return answer_of_incident(guard.incidents[0], index)


def _attached_trainer(case: Any) -> Answer:
    """A trainer attached as it is and run to its end."""
    import steadygrad as sg

    trainer = case.trainer()
    try:
        guard = sg.attach(trainer)
    except sg.UsageError as refused:
        return Answer(error=f"{LEFT_OUT} {refused}")
    with contextlib.suppress(Exception):  # a run that ends badly may have been reported before
        trainer.train()
    incidents = list(guard.incidents)
    if incidents:
        return answer_of_incident(incidents[0], incidents[0].first_step * case.accumulation)
    warned = warnings_of(getattr(guard, "vitals", ()))
    return answer_of_warning(warned[0], warned[0].step) if warned else Answer()
