"""steady diagnose: where the first bad value was computed, why, and which remedies work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WHEN = "after"
SHORT = "where a NaN came from and what fixes it"


def diagnose(
    target: Annotated[Path, typer.Argument(help="A run, or one of its incidents (RUN/incidents/0001).", metavar="RUN")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show the diagnosis of an incident: origin, rows, cause, and the remedies tried by replaying the step.

    With a run it is the newest incident that has a verified remedy, else the newest diagnosed one. Exits with 1,
    because something bad was found.
    """
    from ...diagnosis.lookup import find_incident, how_to_diagnose
    from ...reporters.terminal.console import console, print_json
    from ...reporters.terminal.print_diagnosis import print_diagnosis

    incident, kind = find_incident(target)
    if json:
        print_json(incident)
    else:
        next_step = how_to_diagnose(target, incident) if incident.diagnosis is None else ""
        print_diagnosis(console(), incident, kind, next_step=next_step)
    raise typer.Exit(1)
