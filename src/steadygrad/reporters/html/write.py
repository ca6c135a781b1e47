"""From run directories to one report on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ...journal import read_run, safe_files
from ...journal.run_directory import incident_numbers
from ...records.errors import JournalError, UsageError
from ..run_data.follow_run import RunFollower
from ..run_data.run_summary import name_of, summarise
from .lead_up import NormsBefore
from .report_page import MAX_CARDS, ListedRun, ReportedRun, cards_of, render

MAX_DRAWN = 8
MAX_NAMED = 5000
Progress = Callable[[str, int, int], None]


def write_report(
    targets: Sequence[str | os.PathLike[str]],
    output: Path,
    *,
    drawn: int = MAX_DRAWN,
    progress: Progress = lambda run, done, total: None,
) -> list[ReportedRun]:
    """One page about these runs at `output`, whole or not at all, and what it tells.

    A target is a run, or a directory of runs, of which the newest `drawn` are drawn and the others listed.
    Raises JournalError with one sentence if a run that was asked for by name cannot be read or holds no steps.
    """
    named, found, total = _runs(targets)
    told: list[ReportedRun] = []
    others: list[ListedRun] = []
    for path in named:
        if len(told) < drawn:
            told.append(_told(path, progress))
        else:
            others.append(_listed(path))
    for path in found:
        if len(told) >= drawn:
            others.append(_listed(path))
            continue
        try:
            told.append(_told(path, progress))
        except JournalError as error:
            others.append(ListedRun(name=name_of(path), path=str(path), why=str(error)))
    if not told:
        raise JournalError(others[0].why if len(others) == 1 else f"None of the {total} runs holds a step to report.")
    if total > len(told) + len(others):
        left = total - len(told) - len(others)
        others.append(ListedRun(name="…", path="", why=f"{left} older runs are not listed."))
    page = render(told, others)
    try:
        safe_files.replace_file(output, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise JournalError(
            f"The report cannot be written to {output}: {safe_files.why(error)}. Pass another place with --output."
        ) from error
    return told


def default_output(targets: Sequence[str | os.PathLike[str]]) -> Path:
    """Inside the run if it is one run, else in the current directory."""
    only = Path(targets[0])
    try:
        inside = len(targets) == 1 and (only / "run.json").is_file()
    except OSError:  # what is wrong with it is said when it is read
        inside = False
    return only / "report.html" if inside else Path("report.html")


def _runs(targets: Sequence[str | os.PathLike[str]]) -> tuple[list[Path], list[Path], int]:
    """Runs asked for by name, runs found in a directory that was named (newest first), and how many there are."""
    if not targets:
        raise UsageError("There is nothing to report on: pass the run_dir a guard wrote to.")
    named: list[Path] = []
    found: list[tuple[float, Path]] = []
    for target in dict.fromkeys(Path(target) for target in targets):
        inner = _runs_inside(target)
        if inner:
            found += inner
        else:
            read_run(target)  # or one sentence on why it is none
            named.append(target)
    found.sort(key=lambda entry: (-entry[0], entry[1]))
    return named, [path for _, path in found[:MAX_NAMED]], len(named) + len(found)


def _runs_inside(directory: Path) -> list[tuple[float, Path]]:
    """(when it was last started, path) of the runs in a directory that is none itself."""
    try:
        if not directory.is_dir() or (directory / "run.json").exists():
            return []
        names = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise JournalError(f"{directory} cannot be read: {safe_files.why(error)}.") from error
    found = []
    for name in names:
        about = directory / name / "run.json"
        try:
            found.append((about.stat(follow_symlinks=False).st_mtime, directory / name))
        except OSError:
            continue
    return found


def _told(path: Path, progress: Progress) -> ReportedRun:
    read_run(path)  # or one sentence on why it is none
    follower = RunFollower(path)
    incidents, _ = follower.beside.look()
    norms = NormsBefore(cards_of(incidents, limit=MAX_CARDS))
    follower.on_batch = norms.look
    follower.poll(lambda done, total: progress(name_of(path), done, total))
    if follower.lead is None:
        raise JournalError(f"{path} holds no steps yet: the run was made, and nothing was settled in it.")
    return ReportedRun(summarise(path, follower), norms)


def _listed(path: Path) -> ListedRun:
    """What is cheap to say of a run that is not drawn."""
    try:
        run = read_run(path)
        created = run.get("created")
        return ListedRun(
            name=name_of(path),
            path=str(path),
            created=float(created) if isinstance(created, int | float) else None,
            incidents=len(incident_numbers(path.resolve())),
        )
    except JournalError as error:
        return ListedRun(name=name_of(path), path=str(path), why=str(error))
