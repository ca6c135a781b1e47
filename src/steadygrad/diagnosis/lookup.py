"""A diagnosis that was already made, from an incident or from where it is kept. Imports no torch."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from ..journal import read_incidents, read_run
from ..records import Diagnosis, Incident, Kind, kinds_of
from ..records.errors import JournalError, UsageError

LOOPS_OWN = "the loop's own"
"""What `sg.attach(optimizer)` writes down as the precision of its runs."""


def diagnose(target: Incident | str | os.PathLike[str]) -> Diagnosis:
    """The diagnosis of an incident, of `runs/x/incidents/0001`, or of the incident of `runs/x` of which most is known.

    The guard makes it on the spot, while the weights are still those from before the failing step.

    Args:
        target: an Incident, the path of an incident, or the path of a run.

    Returns:
        A Diagnosis. UsageError where nothing went wrong or the incident was not diagnosed.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def loss_fn(model, batch):
        ...     return (model(batch).sum() / (batch != 0).sum()).pow(2)
        >>> with sg.Guard(model, optimizer, loss_fn, run_dir="runs/api") as guard:
        ...     outcomes = [guard.step(batch) for batch in (torch.ones(8, 4), torch.zeros(8, 4))]
        >>> sg.diagnose("runs/api").because
        'div by an exact zero'
    """
    incident = target if isinstance(target, Incident) else find_incident(target)[0]
    if incident.diagnosis is None:
        raise UsageError(
            f"Incident {incident.number} has no diagnosis: the guard diagnoses the first incidents of each kind, and "
            "none at all with diagnose='off' or under sg.attach(optimizer), where `steady run` does. An earlier "
            "incident of the same kind may have one."
        )
    return incident.diagnosis


def how_to_diagnose(target: str | os.PathLike[str], incident: Incident) -> str:
    """The next step where an incident was not diagnosed: with what the run was started, and what that could not do."""
    path = Path(target)
    run = path.parent.parent if path.parent.name == "incidents" else path
    said = read_run(run)
    about = said.get("configuration")
    about = about if isinstance(about, dict) else {}
    if incident.capsule:
        return f"steady replay {shlex.quote(f'{run}/incidents/{incident.number:04d}')}"
    if about.get("diagnose") == "off":
        return "the run was made with diagnose='off'; run it again without that"
    if about.get("precision") != LOOPS_OWN:
        return ""
    words = [word for word in said.get("command", ()) if isinstance(word, str)]
    script = shlex.join(words) if words and words[0].endswith(".py") else "train.py"
    return f"steady run {script}   (sg.attach(optimizer) cannot run a batch again; this can, and diagnoses)"


def find_incident(target: str | os.PathLike[str]) -> tuple[Incident, Kind]:
    """The incident a path means, and those like it: an incident's own directory, or of a run the newest kind that has
    a verified remedy, else the newest that was diagnosed, else the newest."""
    path = Path(target)
    if path.parent.name == "incidents" and path.name.isdigit():
        run, number = path.parent.parent, int(path.name)
        kinds = kinds_of(read_incidents(run))
        for kind in kinds:
            for incident in kind.incidents:
                if incident.number == number:
                    return incident, kind
        raise JournalError(f"{path} holds no incident. `steady incidents {run}` lists those there are.")
    kinds = kinds_of(read_incidents(path))
    if not kinds:
        raise UsageError(f"Nothing went wrong in {path}: it has no incidents, so there is nothing to diagnose.")
    known = [kind for kind in kinds if kind.best.diagnosis is not None]
    cured = [kind for kind in known if kind.best.diagnosis is not None and kind.best.diagnosis.remedies]
    chosen = (cured or known or kinds)[-1]
    return chosen.best, chosen
