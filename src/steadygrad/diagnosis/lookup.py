"""A diagnosis that was already made, from an incident or from where it is kept. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import JournalError, UsageError
from ..journal import read_incidents
from ..records import Diagnosis, Incident


def diagnose(target: Incident | str | os.PathLike[str]) -> Diagnosis:
    """The diagnosis of an incident, of `runs/x/incidents/0001`, or of the newest incident of `runs/x`.

    The guard makes it on the spot, while the weights are still those from before the failing step.
    """
    incident = target if isinstance(target, Incident) else find_incident(target)
    if incident.diagnosis is None:
        raise UsageError(
            f"Incident {incident.number} has no diagnosis: the guard diagnoses the first incidents of each kind, and "
            "none at all with diagnose='off'. An earlier incident of the same kind may have one."
        )
    return incident.diagnosis


def find_incident(target: str | os.PathLike[str]) -> Incident:
    """The incident a path means: an incident's own directory, or the newest of a run, diagnosed ones first."""
    path = Path(target)
    if path.parent.name == "incidents" and path.name.isdigit():
        run, number = path.parent.parent, int(path.name)
        found = [incident for incident in read_incidents(run) if incident.number == number]
        if not found:
            raise JournalError(f"{path} holds no incident. `steady incidents {run}` lists those there are.")
        return found[0]
    incidents = read_incidents(path)
    if not incidents:
        raise UsageError(f"Nothing went wrong in {path}: it has no incidents, so there is nothing to diagnose.")
    return next((incident for incident in reversed(incidents) if incident.diagnosis is not None), incidents[-1])
