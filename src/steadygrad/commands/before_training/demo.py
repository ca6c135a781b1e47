"""steady demo: the plain loop dies, the guarded one carries on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...records.errors import UsageError

if TYPE_CHECKING:
    from ..demo_parts.two_loops import Result

WHEN = "before"
SHORT = "a small model that turns NaN, with and without a guard"


def demo(
    steps: Annotated[int, typer.Option("--steps", min=1, help="How many batches to train on.")] = 320,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Decides weights and the order of the batches.")] = 0,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", help="Where the guard's journal goes. [default: runs/demo, or runs/demo-2 ...]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs, and nothing else.")] = False,
) -> None:
    """Train a small language model on real text, twice: in a plain loop and in a guarded one.

    The data loader holds a realistic mistake, so the plain loop's loss turns NaN for good. Takes about a minute on
    two cores.
    """
    home = _free_directory(run_dir)
    import torch

    from ...reporters.html.write import write_report
    from ...reporters.terminal.console import console, print_json
    from ..demo_parts.demo_view import DemoView, print_ending, print_opening
    from ..demo_parts.two_loops import TwoLoops

    threads = torch.get_num_threads()
    # A model this small gains little from a second thread, and loses much when another program wants the core.
    torch.set_num_threads(1)
    try:
        screen = console(stderr=json)
        if json:
            screen.quiet = True
        race = TwoLoops(steps=steps, seed=seed, run_dir=home)
        print_opening(screen, race)
        view = DemoView(screen, steps)
        with view.running():
            for lap in race.run():
                view.show(lap)
        result = race.result()
    finally:
        torch.set_num_threads(threads)
    page = home / "report.html"
    write_report([home], page)
    if json:
        print_json(_as_data(result, home) | {"report": str(page)})
    else:
        print_ending(screen, result, home, report=page)


def _free_directory(wanted: Path | None) -> Path:
    """A directory with nothing in it yet: a demo must not be mixed into a run that someone keeps."""
    if wanted is not None:
        if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
            raise UsageError(f"{wanted} is not empty, and the demo would be mixed into it: pass another --run-dir.")
        return wanted
    place, number = Path("runs/demo"), 1
    while place.exists():
        number += 1
        place = Path(f"runs/demo-{number}")
    return place


def _as_data(result: Result, run_dir: Path) -> dict[str, Any]:
    return {
        "steps": result.steps,
        "plain": {
            "first_bad_step": result.plain_first_bad_step,
            "last_loss": result.plain_losses[-1],
            "bad_weight_tensors": result.plain_bad_weights,
        },
        "guarded": {
            "first_loss": result.guarded_losses[0],
            "loss": result.guarded_loss,
            "bad_weight_tensors": result.guarded_bad_weights,
            "summary": result.summary,
        },
        "incidents": result.incidents,
        "run_dir": str(run_dir),
    }
