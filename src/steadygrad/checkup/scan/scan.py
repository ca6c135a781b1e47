"""The scan itself: every target opened, measured and judged, and one answer for all."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ...records.checks.scan import FileScan, ScanReport, TensorScan
from .apply_rules import findings_of
from .file_source import Source, Unreadable
from .measure_tensors import measure
from .natural_order import natural
from .rules import ck203_mixed_dtypes
from .scan_targets import Target, open_contents, targets

_NAMED = 3


class ScanProgress(Protocol):
    """Is told how far a scan is. All three may be called from any thread."""

    def found(self, num_bytes: int) -> None: ...

    def begins(self, path: Path) -> None: ...

    def advances(self, num_bytes: int) -> None: ...


class NoProgress:
    """A watcher that does not look."""

    def found(self, num_bytes: int) -> None: ...

    def begins(self, path: Path) -> None: ...

    def advances(self, num_bytes: int) -> None: ...


def scan(
    paths: Iterable[Path],
    *,
    expected_dtype: str | None = None,
    threads: int | None = None,
    watcher: ScanProgress | None = None,
    mapped: bool = False,
) -> ScanReport:
    """Look at every tensor of every checkpoint at these paths. Runs nothing in them; memory stays flat.

    Args:
        expected_dtype: "float32", "bfloat16" ...: report every matrix that has another floating-point type.
        threads: how many to read with; by default as many as there are cores, at most 8.
        mapped: map files instead of reading them. Faster by a third, but if a file is cut short meanwhile the process
            dies of a bus error; `guarded.guarded` turns that into an exception.
    """
    started = time.monotonic()
    watcher = watcher or NoProgress()
    todo = [target for path in sorted(paths, key=lambda path: natural(str(path))) for target in targets(path)]
    watcher.found(sum(_size(target) for target in todo))
    files = [_scan_target(target, expected_dtype, threads, watcher, mapped) for target in todo]
    _judge_types_together(todo, files)
    return ScanReport(files=tuple(files), seconds=time.monotonic() - started)


def _judge_types_together(todo: Sequence[Target], files: list[FileScan]) -> None:
    """Whether types are mixed is a question about a model, and a model may lie in several files: ask it once for all
    of them, and put the answer to the last."""
    models: dict[Path, list[int]] = {}
    for place, target in enumerate(todo):
        if target.model is not None:
            models.setdefault(target.model, []).append(place)
    for places in models.values():
        together = [tensor for place in places for tensor in files[place].tensors]
        for place in places:
            own = tuple(finding for finding in files[place].findings if finding.code != ck203_mixed_dtypes.RULE.code)
            found = tuple(ck203_mixed_dtypes.look(together)) if place == places[-1] else ()
            files[place] = replace(files[place], findings=(*own, *found))


def _size(target: Target) -> int:
    try:
        return 0 if target.problem else target.path.stat().st_size
    except OSError:
        return 0


def _scan_target(
    target: Target, expected_dtype: str | None, threads: int | None, watcher: ScanProgress, mapped: bool
) -> FileScan:
    path = str(target.path)
    if target.problem is not None:
        return FileScan(path=path, format="unknown", problems=(target.problem,))
    watcher.begins(target.path)
    form, size = "unknown", 0
    try:
        with Source(target.path) as source:
            size = source.size
            contents = open_contents(source, target)
            if contents is None:
                note = "not a checkpoint in any format known here: passed over"
                return FileScan(path=path, format=form, num_bytes=size, notes=(note,))
            form = contents.format
            counted = sum(span.num_bytes for span in contents.spans)
            watcher.advances(size - counted)  # headers and pickles
            tensors = measure(source, contents.spans, threads=threads, progress=watcher.advances, mapped=mapped)
    except Unreadable as why:
        return FileScan(path=path, format=form, num_bytes=size, problems=(str(why),))
    except Exception as error:  # what a hostile file leads to is not all foreseen, and one file must not end the scan
        return FileScan(path=path, format=form, num_bytes=size, problems=(_unforeseen(target.path, error),))
    return FileScan(
        path=path,
        format=form,
        num_tensors=sum(1 + tensor.also for tensor in tensors),
        num_bytes=size,
        tensors=tuple(tensors),
        findings=findings_of(tensors, expected_dtype=expected_dtype),
        problems=(*contents.problems, *_missing(target, tensors)),
        notes=contents.notes,
    )


def _unforeseen(path: Path, error: Exception) -> str:
    return f"{path} cannot be read: it led to {type(error).__name__}, so it is damaged or of a form not known here."


def _missing(target: Target, tensors: Sequence[TensorScan]) -> tuple[str, ...]:
    """Whether a shard lacks tensors that its index promises. One whose memory is shared goes by another name."""
    absent = sorted(target.expected - {tensor.name for tensor in tensors})
    if len(absent) <= sum(tensor.also for tensor in tensors):
        return ()
    names = ", ".join(absent[:_NAMED]) + (f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else "")
    return (f"{target.path} lacks tensors that its index promises: {names}.",)
