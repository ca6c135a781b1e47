"""steady verify: did training do what it should have done?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...records.errors import JournalError, UsageError

if TYPE_CHECKING:
    from ...records.checks.scan import ScanReport
    from ...reporters.run_data.run_summary import RunSummary

WHEN = "after"
SHORT = "check that a run ended, stayed finite, and its loss fell"


def verify(
    run: Annotated[
        Path, typer.Argument(help="The run directory a guard wrote to, or a recipe's folder.", metavar="RUN")
    ],
    model: Annotated[
        list[Path] | None, typer.Option("--model", help="A checkpoint to scan beside the run's newest; repeatable.")
    ] = None,
    metrics: Annotated[
        list[Path] | None,
        typer.Option("--metrics", help="Numbers of an evaluation: JSON, JSON lines or trainer_state.json; repeatable."),
    ] = None,
    above: Annotated[
        list[str] | None, typer.Option("--above", help="NAME=NUMBER that a metric must exceed; repeatable.")
    ] = None,
    falls: Annotated[
        list[str] | None, typer.Option("--falls", help="A metric that must have fallen; repeatable.")
    ] = None,
    max_norm: Annotated[
        float | None, typer.Option("--max-norm", min=0.0, help="No gradient norm may exceed this before clipping.")
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option("--max-memory", help="The most memory that the GPU, else the process, may take: 2GB, 512MiB."),
    ] = None,
    min_success: Annotated[
        float, typer.Option("--min-success", min=0.0, max=1.0, help="The share of steps that must have been applied.")
    ] = 0.85,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", help="Leave a line out; repeatable.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Check a run after training: it ended, no bad update was applied, the loss fell.

    Each line passes, fails, or is not checked where it was not recorded. Metrics are looked for in the loss terms, in
    RUN/metrics.json, RUN/result.json and --metrics files; an accuracy or answer rate that was recorded must be above
    zero. Exits with 1 if any line fails or one asked for by name was not recorded, and with 2 if the run is unreadable.
    """
    from ...reporters.checklist.checks import CheckOptions, RunEvidence, checklist
    from ...reporters.checklist.metrics_files import gathered
    from ...reporters.checklist.print_checklist import as_data, failed, print_checklist
    from ...reporters.run_data.follow_run import RunFollower
    from ...reporters.run_data.run_summary import summarise
    from ...reporters.terminal.console import console, print_json

    wishes = CheckOptions(
        min_success=min_success, max_norm=max_norm, above=_limits(above or []), falls=tuple(falls or ()),
        ignore=frozenset(ignore or ()), max_memory=_bytes(max_memory) if max_memory is not None else None,
    )  # fmt: skip
    folders = [run]
    if not (run / "run.json").exists() and (run / "run" / "run.json").is_file():
        folders = [run, run / "run"]  # a recipe's folder, which holds its results and the run
        run = run / "run"
    follower = RunFollower(run)
    follower.poll()
    story = summarise(run, follower)
    if story.rows is None or not story.rows.num_rows:
        raise JournalError(f"{run} holds no steps yet: nothing was trained, so there is nothing to verify.")
    paths, none = _to_scan(run, story, model or [])
    evidence = RunEvidence(
        story=story, metrics=gathered(folders, story.rows, metrics or ()),
        checkpoint=_scanned(paths), no_checkpoint=none,
    )  # fmt: skip
    checks = checklist(evidence, wishes)
    if json:
        print_json(as_data(str(run), checks))
    else:
        print_checklist(console(), story, checks)
    raise typer.Exit(1 if failed(checks) else 0)


def _limits(texts: list[str]) -> dict[str, float]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise UsageError(f"--above {text} is not understood: write NAME=NUMBER, for example accuracy=0.3.")
    return found


def _bytes(text: str) -> float:
    """2GB is 2e9 bytes, 2GiB is 2 * 2**30; a bare number is bytes."""
    match = re.fullmatch(r"([0-9.]+)\s*(?:([kMGT]?)(i?)B)?", text.strip(), re.IGNORECASE)
    try:
        number = float(match[1]) if match else 0.0
    except ValueError:
        number = 0.0
    if match is None or not number > 0:
        raise UsageError(f"--max-memory {text} is not understood: write a size such as 2GB, 512MB or 1.5GiB.")
    return number * float(1024 if match[3] else 1000) ** " kmgt".index((match[2] or " ").lower())


def _to_scan(run: Path, story: RunSummary, models: list[Path]) -> tuple[list[Path], str]:
    """The newest checkpoint that the guard kept, the newest that a trainer wrote under it, and the named ones; or
    where none was found."""
    from ...checkup.scan.bisect_checkpoints import checkpoints

    snapshots = run / "snapshots"
    newest = checkpoints(snapshots)[-1:] if snapshots.is_dir() else []
    saved = [str(event.data.get("path")) for event in story.events if event.kind == "checkpoint_saved"]
    there = [Path(path) for path in saved if "://" not in path and Path(path).exists()]
    paths = [*newest, *there[-1:], *models]
    if saved and not there:
        return paths, f"not known: the trainer's newest checkpoint, {saved[-1]}, is not there; pass --model PATH"
    told = f"not known: none is in {snapshots} and none of a trainer was recorded; the program's own: --model PATH"
    return paths, told


def _scanned(paths: list[Path]) -> ScanReport | None:
    from ...checkup.scan.scan import scan

    return scan(paths) if paths else None
