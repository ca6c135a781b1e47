"""Since when a series of checkpoints is bad: the last good one and the first bad one, found by halving.

Poison stays: weights that hold a NaN are not healed by further training, so once one checkpoint is bad all later ones
are, and a series of a hundred is settled by looking at eight. One that cannot be read is no good to resume from and
counts as bad here.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...records.checks.scan import Bisection, ScanReport, ScanVerdict
from ...records.errors import UsageError
from .scan import ScanProgress, scan
from .scan_targets import INDEX_SUFFIX, SUFFIXES

_NUMBER = re.compile(r"\d+")


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first, by the numbers in their names. A name without any is left out."""
    try:
        # The guard keeps its own in a folder of the run directory.
        home = folder / "snapshots" if (folder / "run.json").is_file() else folder
        entries = [
            entry
            for entry in home.iterdir()
            if not entry.name.startswith(".")
            and (entry.is_dir() or (entry.name.endswith(SUFFIXES) and not entry.name.endswith(INDEX_SUFFIX)))
        ]
    except OSError as error:
        raise UsageError(f"{folder} cannot be looked into: {(error.strerror or 'error').lower()}.") from error
    numbered = [(tuple(int(number) for number in _NUMBER.findall(entry.name)), entry) for entry in entries]
    return [entry for numbers, entry in sorted(numbered) if numbers]


def bisect(
    folder: Path,
    *,
    expected_dtype: str | None = None,
    threads: int | None = None,
    watcher: ScanProgress | None = None,
    mapped: bool = False,
) -> Bisection:
    """The last good checkpoint in a folder and the first bad one after it. Scans about log2 of them."""
    series = checkpoints(folder)
    if not series:
        raise UsageError(
            f"{folder} holds no series of checkpoints: expected names with a number in them, such as checkpoint-500."
        )
    seen: dict[int, ScanReport] = {}
    order: list[tuple[str, ScanVerdict]] = []

    def good(index: int) -> bool:
        if index not in seen:
            seen[index] = scan(
                [series[index]], expected_dtype=expected_dtype, threads=threads, watcher=watcher, mapped=mapped
            )
            order.append((str(series[index]), seen[index].verdict))
        return seen[index].verdict is ScanVerdict.CLEAN

    last = len(series) - 1
    if good(last):
        low, high = last, len(series)
    elif last == 0 or not good(0):
        # The oldest tells nothing about the others if it is merely damaged: go back one by one.
        low = next((index for index in range(last - 1, 0, -1) if good(index)), -1)
        high = low + 1
    else:
        low, high = 0, last  # good at low, bad at high
        while high - low > 1:
            middle = (low + high) // 2
            if good(middle):
                low = middle
            else:
                high = middle
    edge = [seen[index] for index in (low, high) if index in seen]
    return Bisection(
        last_good=str(series[low]) if low >= 0 else None,
        first_bad=str(series[high]) if high <= last else None,
        num_checkpoints=len(series),
        looked_at=tuple(order),
        report=ScanReport(
            files=tuple(file for report in edge for file in report.files),
            seconds=sum(report.seconds for report in seen.values()),
        ),
    )
