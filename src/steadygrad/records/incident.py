"""A stretch of trouble: what was found, what was decided, where its capsule is, what the clinic said."""

from __future__ import annotations

from dataclasses import dataclass

from .diagnosis import Diagnosis
from .judgement import Decision, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Consecutive refused steps with one symptom are one incident."""

    number: int
    first_step: int
    last_step: int
    symptom: str
    headline: str = ""
    findings: tuple[Finding, ...] = ()
    decision: Decision | None = None
    capsule: str | None = None
    batch_key: str | None = None
    diagnosis: Diagnosis | None = None
    time: float = 0.0
