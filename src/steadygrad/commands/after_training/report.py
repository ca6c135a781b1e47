"""steady report: one HTML file that tells what became of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WHEN = "after"
SHORT = "one HTML page about a run, or several"


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories a guard wrote to, or a directory of runs.", metavar="RUN...")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where the page goes. [default: RUN/report.html, or report.html for several runs]"
        ),
    ] = None,
    drawn: Annotated[
        int, typer.Option("--drawn", min=1, max=24, help="How many runs to draw; further ones are listed.")
    ] = 8,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs, and nothing else.")] = False,
) -> None:
    """Write one HTML page about a run, or several side by side: curves, layers, incidents, remedies, what to do.

    The page is one file that needs no network. Given a directory of runs, the newest are drawn and the rest listed.
    """
    from ...reporters.html.progress import reading
    from ...reporters.html.write import default_output, write_report
    from ...reporters.terminal.console import console, labelled, print_json, shown

    place = output if output is not None else default_output(runs)
    with reading(quiet=json) as progress:
        told = write_report(runs, place, drawn=drawn, progress=progress)
    stories = [entry.story for entry in told]
    if json:
        print_json(
            {
                "report": str(place),
                "bytes": place.stat().st_size,
                "runs": [
                    {
                        "run": str(story.path),
                        "state": story.state.word,
                        "headline": story.headline,
                        "steps": story.counts.steps,
                        "refused": story.counts.refused,
                        "incidents": len(story.incidents),
                        "notes": story.notes,
                    }
                    for story in stories
                ],
            }
        )
        return
    screen = console()
    for story in stories:
        screen.print(labelled(shown(story.name, limit=40), shown(story.headline), width=12), soft_wrap=True)
        for note in story.notes:
            screen.print(labelled("note", shown(note), width=12), soft_wrap=True)
    screen.print(labelled("report", shown(place), width=12), soft_wrap=True)
