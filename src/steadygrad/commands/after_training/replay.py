"""steady replay: run the step in a capsule again, in your own code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ...diagnosis.capsule.recorded_program import RecordedProgram
    from ...diagnosis.capsule.replay_capsule import ReplayResult

WHEN = "after"
SHORT = "run a failing step again, and diagnose it"


def replay(
    incident: Annotated[
        Path, typer.Argument(help="An incident with a capsule (RUN/incidents/0001), or a run.", metavar="INCIDENT")
    ],
    entry: Annotated[
        str | None,
        typer.Option(
            "--entry",
            help="Your module:function that returns (model, optimizer, loss_fn), or a mapping with these names. "
            "Nothing else of the program runs then.",
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", help="The program to run, instead of the recorded one: 'train.py --epochs 3'."),
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Run the script though it changed since.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Run the program without asking.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run the failing step of an incident again from its capsule, and diagnose it.

    The recorded program is run again, in its directory, up to its first guarded step; there the capsule's state and
    batch are put in place, and nothing of the program runs after that. Its guards write nothing. The command is shown
    first and must be confirmed, at the terminal or with --yes: running it is running code, and it was read from a file.
    With --entry only the module you name is imported. With a run it is the newest incident that has a capsule.

    Exits with 0 if the step is finite now, 1 if the failure is reproduced, and 2 if it cannot be replayed: the capsule
    is missing, truncated, changed, from a newer version or does not fit, the script is gone or has changed since
    (--changed accepts that), the program never reached a guarded step, or running it was not confirmed.
    """
    from ...diagnosis.capsule.entry_point import find_capsule, load_entry
    from ...records.errors import UsageError
    from ...reporters.terminal.console import print_json

    folder = find_capsule(incident)
    if entry is not None:
        if command is not None or changed:
            raise UsageError("--entry runs no program, so --command and --changed do not go with it.")
        function = load_entry(entry)

        from ...diagnosis.capsule.replay_capsule import replay_capsule

        found = replay_capsule(folder, function)
    else:
        from ...diagnosis.capsule.recorded_program import program_of
        from ...diagnosis.capsule.replay_parent import rerun

        program = program_of(folder, command=command, changed=changed)
        _ask(program, yes=yes)
        found = rerun(folder, program)
    if json:
        print_json(found)
    else:
        _print(folder, found)
    raise typer.Exit(1 if found.reproduced else 0)


def _ask(program: RecordedProgram, *, yes: bool) -> None:
    """Show what would run, on standard error, and go on only with a yes."""
    from ...records.errors import UsageError
    from ...reporters.terminal.console import console, labelled, shown

    screen = console(stderr=True)
    screen.print(labelled("runs", shown(program.shown, limit=2000)), soft_wrap=True)
    screen.print(labelled("in", shown(program.folder)), soft_wrap=True)
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("Confirmation required and stdin is not a terminal: pass --yes.")
    if not typer.confirm("Run it up to its first guarded step?", err=True):
        raise UsageError("Nothing was run.")


def _print(folder: Path, found: ReplayResult) -> None:
    from ...reporters.terminal.console import console, labelled, number, shown
    from ...reporters.terminal.print_diagnosis import print_findings

    screen = console()
    word = "reproduced" if found.reproduced else "not reproduced (finite)"
    screen.print(f"{shown(folder)}, step {found.step}, {shown(found.symptom)}: {word}", soft_wrap=True)
    bits = "same bits" if found.same_loss_bits else "different"
    then, now = (", ".join(number(loss) for loss in x) for x in (found.recorded_losses, found.losses))
    screen.print(labelled("loss", f"{now} (was {then}): {bits}"), soft_wrap=True)
    for note in found.notes:
        screen.print(labelled("note", shown(note)), soft_wrap=True)
    print_findings(screen, found.diagnosis)
