"""steady incidents: what went wrong in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WHEN = "after"
SHORT = "which steps were refused, why, and what was done"


def incidents(
    run: Annotated[Path, typer.Argument(help="The run directory a guard wrote to.", metavar="RUN")],
    last: Annotated[int | None, typer.Option("--last", min=1, help="Show only this many of the newest.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List the incidents of a run: which steps were refused, why, and what was done.

    Exits with 1 if there are any, for use in scripts.
    """
    from ...journal import read_events, read_incidents
    from ...reporters.terminal.console import console, print_json
    from ...reporters.terminal.print_incidents import print_incidents, print_vitals

    found = read_incidents(run)
    chosen = found if last is None else found[-last:]
    if json:
        print_json({"run": str(run), "num_incidents": len(found), "incidents": chosen})
    else:
        screen = console()
        print_incidents(screen, str(run), found, left_out=len(found) - len(chosen))
        print_vitals(screen, read_events(run), found)
    if found:
        raise typer.Exit(1)
