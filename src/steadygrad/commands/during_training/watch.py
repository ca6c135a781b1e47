"""steady watch: follow a run while it trains."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

WHEN = "during"
SHORT = "follow a run in the terminal"
FIRST_FILE_S = 10.0


def watch(
    run: Annotated[Path, typer.Argument(help="The run directory a guard writes to.", metavar="RUN")],
    once: Annotated[bool, typer.Option("--once", help="Look once, print, and end.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.2, max=3600.0, help="Seconds between two looks; more on a slow line.")
    ] = 1.0,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to", help="Send all readings on to tensorboard, wandb, mlflow or trackio instead of showing them."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs; implies --once.")] = False,
) -> None:
    """Follow a run in the terminal: loss, gradient norm, layers, learning rate, refused steps and incidents.

    Reads the run's files and nothing else, so it works for a run that is going on, has ended or has crashed, and waits
    for one that does not exist yet. In a pipe it looks once. The view needs `pip install "steadygrad[watch]"`; --once
    and --json need nothing more. With --to it goes on until the run has ended, or with --once sends what there is.
    """
    from ...reporters.run_data.follow_run import RunFollower
    from ...reporters.run_data.run_summary import summarise
    from ...reporters.terminal.console import console, print_json

    screen = console()
    if not (once or json) and screen.is_terminal:
        _wait_for(run, every=every)
    if to:
        from ...reporters.trackers.sending import send

        send(screen, run, to, once=once, every=every, json=json)
        return
    follower = RunFollower(run)
    if once or json or not screen.is_terminal:
        follower.poll()
        story = summarise(run, follower)
        if json:
            from ...reporters.run_data.current_numbers import glance

            print_json(glance(story))
        else:
            from ...reporters.live_view.print_once import print_once

            print_once(screen, story)
        return
    summarise(run, follower)  # one sentence if this is no run, before the screen changes
    from ...reporters.live_view.open_view import show

    show(run, every=every)


def _wait_for(run: Path, *, every: float) -> None:
    """Waits while there is nothing at all where the run will be, as `tail -F` does."""
    from ...reporters.terminal.console import console, shown

    def missing() -> bool:
        return not run.exists() or (run.is_dir() and not any(run.iterdir()))

    if missing():
        console(stderr=True).print(f"waiting for {shown(run)} (Ctrl-C to stop)", soft_wrap=True)
    while missing() or (run.is_dir() and not (run / "run.json").exists() and _just_made(run)):
        time.sleep(every)


def _just_made(run: Path) -> bool:
    """Whether a writer may still be at its first file."""
    return time.time() - run.stat().st_mtime < FIRST_FILE_S
