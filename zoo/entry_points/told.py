"""What steadygrad reported, in the terms of the scorer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..truth import Answer


def answer_of(diagnosis: Any, step: int) -> Answer:
    """A diagnosis as an answer; `step` is the batch at which the alarm came."""
    origin = diagnosis.origin
    return Answer(
        alarm_step=step,
        symptom=diagnosis.symptom,
        phase=diagnosis.phase,
        op=origin.op if origin else None,
        module=origin.module if origin else None,
        lines=list(origin.stack) if origin else [],
        rows=list(diagnosis.rows) if diagnosis.rows is not None else None,
        cause=diagnosis.cause.slug if diagnosis.cause else None,
        verified=[trial.remedy.slug for trial in diagnosis.remedies],
        because=diagnosis.because,
    )


def answer_of_incident(incident: Any, step: int) -> Answer:
    """An incident as an answer, with or without a diagnosis."""
    if incident.diagnosis is None:
        return Answer(alarm_step=step, symptom=incident.symptom, because=incident.headline)
    return answer_of(incident.diagnosis, step)


def answer_of_warning(found: Any, step: int) -> Answer:
    """A warning of a sampled check that did not become an incident."""
    return Answer(alarm_step=step, symptom="silent", because=f"{found.code} {found.detail}")


def warnings_of(findings: Iterable[Any]) -> list[Any]:
    """The findings that are more than a note."""
    return [found for found in findings if found.severity.value != "note"]
