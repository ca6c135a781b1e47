"""steady replay: run the step in a capsule again, in your own code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def replay(
    incident: Annotated[
        Path, typer.Argument(help="An incident with a capsule (RUN/incidents/0001), or a run.", metavar="INCIDENT")
    ],
    entry: Annotated[
        str,
        typer.Option(
            "--entry",
            help="Your module:function that returns (model, optimizer, loss_fn), or a mapping with these names.",
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run the failing step of an incident again from its capsule, and diagnose it.

    With a run it is the newest incident that has a capsule. The capsule's state is put into what your function made;
    only the module you name is imported, from the current directory or an installed package, and nothing that a
    capsule names. Exits with 0 if the step came out finite, 1 if the trouble is there again, and 2 if the capsule
    cannot be used: missing, torn, changed, from a newer version, or not fitting the script as it is now.
    """
    from ..clinic.entry import find_capsule, load_entry
    from ..reporters.diagnosis import print_findings_of_clinic
    from ..reporters.terminal import console, labelled, number, print_json, shown

    folder = find_capsule(incident)
    function = load_entry(entry)

    from ..clinic.restage import replay_capsule

    found = replay_capsule(folder, function)
    if json:
        print_json(found)
    else:
        screen = console()
        word = "the trouble is there again" if found.reproduced else "this time it came out finite"
        screen.print(f"{shown(folder)}, step {found.step}, {shown(found.symptom)}: {word}", soft_wrap=True)
        bits = "the same to the bit, or NaN both times" if found.same_loss_bits else "not the same"
        then, now = (", ".join(number(loss) for loss in x) for x in (found.recorded_losses, found.losses))
        screen.print(labelled("loss", f"{now} (was {then}): {bits}"), soft_wrap=True)
        for note in found.notes:
            screen.print(labelled("note", shown(note)), soft_wrap=True)
        print_findings_of_clinic(screen, found.diagnosis)
    raise typer.Exit(1 if found.reproduced else 0)
