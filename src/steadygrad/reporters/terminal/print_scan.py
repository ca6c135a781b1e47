"""What a scan found, on the terminal, and how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...records import to_plain
from ...records.checks.scan import Bisection, FileScan, ScanLevel, ScanReport, ScanVerdict
from .console import amount, number, shown

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_STYLES = {ScanVerdict.CLEAN: "green", ScanVerdict.POISONED: "bold red", ScanVerdict.UNREADABLE: "bold yellow"}
_LISTED = 20


def print_scan(console: Console, report: ScanReport, *, tensors: bool = False) -> None:
    """One line a file, below it what was found in it, and one line for all."""
    for file in report.files:
        _print_file(console, file, tensors)
    total = sum(file.num_bytes for file in report.files)
    count = sum(file.num_tensors for file in report.files)
    line = Text()
    line.append(report.verdict, style=_STYLES[report.verdict])
    speed = f", {amount(int(total / report.seconds))}/s" if report.seconds > 0.05 else ""
    line.append(f": {_files(report)}, {_tensors(count)}, {amount(total)} in {report.seconds:.1f} s{speed}", style="dim")
    if (last := last_clean(report)) is not None:
        line.append(f"; last clean: {shown(last)}", style="dim")
    console.print(line, soft_wrap=True)


def last_clean(report: ScanReport) -> str | None:
    """Of a series of checkpoints that is clean up to some point and poisoned after it: the last clean one."""
    verdicts = [file.verdict for file in report.files]
    clean = sum(verdict is ScanVerdict.CLEAN for verdict in verdicts)
    series = [ScanVerdict.CLEAN] * clean + [ScanVerdict.POISONED] * (len(verdicts) - clean)
    return report.files[clean - 1].path if 0 < clean < len(verdicts) and verdicts == series else None


def _files(report: ScanReport) -> str:
    """How many files the verdict is about: "4 of 10 files", and how many of the others cannot be read."""
    number = len(report.files)
    counts = {verdict: sum(file.verdict is verdict for file in report.files) for verdict in ScanVerdict}
    share = f"{counts[report.verdict]:,} of " if counts[report.verdict] != number else ""
    text = f"{share}{number:,} file" + ("s" if number != 1 else "")
    unread = counts[ScanVerdict.UNREADABLE] if report.verdict is ScanVerdict.POISONED else 0
    return text + (f" ({unread:,} cannot be read)" if unread else "")


def _print_file(console: Console, file: FileScan, tensors: bool) -> None:
    line = Text()
    line.append(f"{file.verdict:<10}", style=_STYLES[file.verdict])
    line.append(f" {shown(file.path)}")
    if file.num_tensors:
        line.append(f"  {shown(file.format)}, {_tensors(file.num_tensors)}, {amount(file.num_bytes)}", style="dim")
    console.print(line, soft_wrap=True)
    for problem in file.problems:
        console.print(Text(f"  {shown(problem, limit=2000)}", style="yellow"), soft_wrap=True)
    for finding in file.findings[:_LISTED]:
        style = "red" if finding.level is ScanLevel.POISON else "dim"
        what = Text(f"  {finding.code} {finding.slug:<17}", style=style)
        name = f" {shown(finding.tensor)}:" if finding.tensor is not None else ""
        console.print(what.append(f"{name} {shown(finding.detail)}", style=""), soft_wrap=True)
    if len(file.findings) > _LISTED:
        left = f"  and {len(file.findings) - _LISTED:,} more; --json has all of them"
        console.print(Text(left, style="dim"), soft_wrap=True)
    for note in file.notes:
        console.print(Text(f"  {shown(note)}", style="dim"), soft_wrap=True)
    if tensors and file.tensors:
        console.print(_table(file))


def _tensors(number: int) -> str:
    return f"{number:,} tensor" + ("s" if number != 1 else "")


def _table(file: FileScan) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=True)
    table.add_column("tensor", overflow="fold")
    for heading in ("type", "shape"):
        table.add_column(heading)
    for heading in ("largest", "nan", "inf", "zero", "subnormal"):
        table.add_column(heading, justify="right")
    for tensor in file.tensors:
        counts = (tensor.num_nan, tensor.num_inf, tensor.num_zero, tensor.num_subnormal)
        table.add_row(
            shown(tensor.name), tensor.dtype, "x".join(str(length) for length in tensor.shape) or "scalar",
            number(tensor.largest, digits=3), *(f"{count:,}" if count else "" for count in counts),
        )  # fmt: skip
    return table


def print_bisection(console: Console, found: Bisection) -> None:
    """Which checkpoint to go back to, and what is wrong with the one after it."""
    for path, verdict in found.looked_at:
        console.print(Text(f"{verdict:<10}", style=_STYLES[verdict]).append(f" {shown(path)}"), soft_wrap=True)
    looked = f"looked at {len(found.looked_at)} of {found.num_checkpoints} checkpoints"
    if found.last_good is None:
        console.print(Text(f"no good checkpoint was found; {looked}", style="bold red"))
    elif found.first_bad is None:
        console.print(Text(f"the newest checkpoint is good: {shown(found.last_good)}; {looked}"), soft_wrap=True)
    else:
        console.print(Text(f"last good  {shown(found.last_good)}", style="bold green"), soft_wrap=True)
        console.print(Text(f"first bad  {shown(found.first_bad)}", style="bold red"), soft_wrap=True)
        console.print(Text(looked, style="dim"))
    if found.first_bad is not None:
        for file in found.report.files:
            if file.verdict is not ScanVerdict.CLEAN:
                _print_file(console, file, tensors=False)


def as_data(report: ScanReport, *, tensors: bool = False) -> dict[str, Any]:
    """A scan for programs. The tensors that nothing was found in are left out unless they are asked for."""
    files = []
    for file in report.files:
        entry = to_plain(file)
        entry["verdict"] = file.verdict.value
        if not tensors:
            named = {finding.tensor for finding in file.findings}
            entry["tensors"] = [tensor for tensor in entry["tensors"] if tensor["name"] in named]
        files.append(entry)
    total = sum(file.num_bytes for file in report.files)
    return {"verdict": report.verdict.value, "num_bytes": total, "seconds": report.seconds,
            "last_clean": last_clean(report), "files": files}  # fmt: skip


def bisection_as_data(found: Bisection) -> dict[str, Any]:
    """A search for the last good checkpoint, for programs."""
    return {
        "last_good": found.last_good,
        "first_bad": found.first_bad,
        "num_checkpoints": found.num_checkpoints,
        "looked_at": [{"path": path, "verdict": verdict.value} for path, verdict in found.looked_at],
        "scan": as_data(found.report),
    }


class Bar:
    """A progress bar, told by the scan from any thread."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task
        self._total = 0

    def found(self, num_bytes: int) -> None:
        self._total += num_bytes
        self._progress.update(self._task, total=self._total)

    def begins(self, path: Path) -> None:
        self._progress.update(self._task, description=shown(path.name, limit=40))

    def advances(self, num_bytes: int) -> None:
        self._progress.advance(self._task, num_bytes)


@contextmanager
def bar(console: Console) -> Iterator[Bar | None]:
    """A bar on a terminal that someone looks at; nothing at all in a file or a pipe."""
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(progress, progress.add_task("", total=None))
