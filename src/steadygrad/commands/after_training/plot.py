"""steady plot: the loss curve of a run as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WHEN = "after"
SHORT = "the loss curve of a run as a picture"


def plot(
    run: Annotated[Path, typer.Argument(help="The run directory a guard wrote to.", metavar="RUN")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the picture goes: .svg or .png.")] = Path(
        "loss.svg"
    ),
    linear: Annotated[bool, typer.Option("--linear", help="Linear axes instead of logarithmic ones.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Draw the loss and the gradient norm of a run on logarithmic axes, with the clip line and incidents marked.

    An .svg needs nothing else installed; a .png needs Pillow (`pip install "steadygrad[pictures]"`).
    """
    from ...reporters.pictures.plot_file import write_plot
    from ...reporters.terminal.console import console, print_json, shown

    story, scene = write_plot(run, output, log=not linear)
    if json:
        counts = {"steps": story.counts.steps, "refused": story.counts.refused, "incidents": len(story.incidents)}
        print_json({"output": str(output), "run": str(run), **counts, "notes": [*scene.notes, *story.notes]})
        return
    screen = console()
    screen.print(f"{shown(output)}: {shown(story.headline)}", soft_wrap=True)
    for note in (*scene.notes, *story.notes):
        screen.print(f"  {shown(note)}", style="dim", soft_wrap=True)
