"""A replay of every step with everything measured: what detection and diagnosis could reach, not what a user sees."""

from __future__ import annotations

from ..patients import run_case
from ..truth import Answer, Subject
from .told import answer_of


def upper_bound(subject: Subject) -> Answer:
    """The case's loop, each step replayed and judged, the first problem diagnosed in full."""
    sighting = run_case(subject.case)
    if sighting.suspicion is None or sighting.diagnosis is None:
        return Answer()
    return answer_of(sighting.diagnosis, sighting.suspicion.step)
