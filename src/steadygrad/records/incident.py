"""An incident: what was found, what was decided, where its capsule is, what the diagnosis said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .diagnosis import Diagnosis
from .finding_and_decision import Decision, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Consecutive refused steps with one symptom are one incident.

    Args:
        number: counted from 1; the files are in RUN/incidents/0001.
        first_step, last_step: the refused steps.
        symptom: what was seen: nan_loss, nan_grad, nan_param, nan_state and so on.
        headline: one sentence.
        findings, decision: what was seen in the first step, and what was done about it.
        capsule: where the state and the batch are kept for `steady replay`, if they are.
        batch_key: the name of the first batch.
        diagnosis: None where none was made; the first incidents of each kind are diagnosed.
        time: when, in seconds since 1970.

    Returns:
        A frozen record.

    Example:
        >>> incident = sg.Incident(number=1, first_step=7, last_step=9, symptom="nan_loss")
        >>> incident.last_step - incident.first_step + 1
        3
    """

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


@dataclass(frozen=True, slots=True)
class Kind:
    """Incidents that look alike. `best` is the one to read: with a verified remedy if one has it, else diagnosed."""

    best: Incident
    incidents: tuple[Incident, ...]

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(incident.number for incident in self.incidents)


def kinds_of(incidents: Sequence[Incident]) -> list[Kind]:
    """Groups of incidents, in the order in which each kind first occurred.

    Diagnosed incidents are alike where symptom, cause and origin are the same. One that was not diagnosed joins the
    newest diagnosed kind of its symptom before it, for the engine diagnoses the first ones of every symptom; else it
    joins the others of its symptom.
    """
    groups: dict[tuple[object, ...], list[Incident]] = {}
    newest: dict[str, tuple[object, ...]] = {}
    for incident in incidents:
        found = incident.diagnosis
        if found is None:
            key = newest.get(incident.symptom, (incident.symptom,))
        else:
            where = found.origin
            place = (where.op, where.module, where.source, where.tensor) if where is not None else ()
            key = (incident.symptom, found.cause.code if found.cause is not None else None, place)
            newest[incident.symptom] = key
        groups.setdefault(key, []).append(incident)
    return [Kind(max(group, key=_told), tuple(group)) for group in groups.values()]


def _told(incident: Incident) -> tuple[bool, bool, int]:
    """How much is known of an incident; of two that are equal, the first is taken."""
    found = incident.diagnosis
    return found is not None and bool(found.remedies), found is not None, len(found.trials) if found is not None else 0
