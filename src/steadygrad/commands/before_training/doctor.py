"""steady doctor: what is likely to go wrong, told before training starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WHEN = "before"
SHORT = "what is likely to go wrong in a script or config"


def doctor(
    target: Annotated[
        list[Path],
        typer.Argument(
            help="Training scripts, YAML, TOML or JSON configurations, a saved training_args.bin, or folders of these.",
            metavar="TARGET...",
        ),
    ],
    select: Annotated[
        list[str] | None, typer.Option("--select", help="Only these codes or beginnings of codes, such as PF4.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="Not these codes or beginnings of codes.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for notes as well.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Read a training script or configuration and say what is likely to go wrong. Nothing in it is run.

    `# steady: allow PF101` on a line, or alone above it, silences a finding; `# steady: allow-file PF101` does so for
    the file. `[tool.steadygrad.doctor]` in pyproject.toml takes select, ignore and exclude. Exits with 1 if there is a
    warning or an error, and with --strict also for a note, which names what fails only for values that are not seen;
    with 2 if no training was recognised in a file that was named, and with 0 otherwise.
    """
    from ...checkup.doctor import doctor_files
    from ...reporters.terminal.console import console, print_json
    from ...reporters.terminal.print_doctor import print_checkup

    found = doctor_files(target, select=select or (), ignore=ignore or ())
    if json:
        print_json(found)
    else:
        print_checkup(console(), found)
    if not found.clean or (strict and found.advice):
        raise typer.Exit(1)
    if found.unchecked:
        raise typer.Exit(2)
