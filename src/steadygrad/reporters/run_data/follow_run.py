"""Reading a run as it grows, and only what is new of it.

A segment of steps only ever gains rows: it is appended to, and when its small batches are merged the same rows are
found in the same order. So it is enough to remember how many rows of each segment were seen. Only segments whose file
changed are opened; a segment is at most a few megabytes, which bounds the work of one look.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...journal.steps.segment import segments
from ...journal.steps.step_reader import read_segment, segment_paths
from ...records.errors import JournalError
from .changed_files import ChangedFiles, Identity, identity_of
from .step_columns import RankColumns

Look = Callable[[int, Any], None]
MAX_SEGMENTS = 5_000
"""A segment is megabytes and a resumed run begins another: of more, only the newest are read, and that is reported."""


class RunFollower:
    """Follows the steps of one run. `ranks` is a list, lowest first; most runs have one.

    `faults` holds one sentence for every segment that could not be read at the last look; `beside` reads what is not
    steps; `on_batch(rank, batch)` is called with every new record batch.
    """

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        self.run_dir = Path(run_dir)
        self.beside = ChangedFiles(self.run_dir)
        self.faults: list[str] = []
        self.on_batch: Look | None = None
        self._ranks: dict[int, RankColumns] = {}
        self._seen: dict[str, tuple[Identity, int]] = {}

    @property
    def ranks(self) -> list[RankColumns]:
        return [self._ranks[rank] for rank in sorted(self._ranks)]

    @property
    def lead(self) -> RankColumns | None:
        """The rank that stands for the run: the lowest."""
        return self.ranks[0] if self._ranks else None

    def poll(self, progress: Callable[[int, int], None] = lambda done, total: None) -> int:
        """Reads what is new and returns how many rows that was; `progress(done, total)` counts bytes.

        Raises JournalError if this is no run, or if there is something and nothing of it can be read.
        """
        everything = segment_paths(self.run_dir)
        paths = everything[-MAX_SEGMENTS:]
        # A file that is being replaced at this moment is found by the next look.
        sizes = [identity_of(path) or (0, 0, 0) for path in paths]
        total, done, rows = sum(size for _, size, _ in sizes), 0, 0
        self.faults = []
        if left := len(everything) - len(paths):
            self.faults.append(f"{left:,} of {len(everything):,} step segments were not read, the oldest ones.")
        for path, identity in zip(paths, sizes, strict=True):
            if self._seen.get(path.name, (None, 0))[0] != identity:
                try:
                    rows += self._read(path, identity)
                except JournalError as error:
                    self.faults.append(str(error))
            done += identity[1]
            progress(done, total)
        if self.faults and not self._ranks:
            raise JournalError(self.faults[0])
        return rows

    def _read(self, path: Path, identity: Identity) -> int:
        ((_, rank, _),) = segments([path.name])
        seen, before = self._seen.get(path.name, (None, 0))[1], 0
        fresh = 0
        for batch in read_segment(path):
            start = max(0, min(batch.num_rows, seen - before))
            before += batch.num_rows
            if start == batch.num_rows:
                continue
            part = batch.slice(start)
            if rank not in self._ranks:
                self._ranks[rank] = RankColumns(rank)
            self._ranks[rank].add(part)
            if self.on_batch is not None:
                self.on_batch(rank, part)
            fresh += part.num_rows
            # Kept batch by batch: were a later one damaged, these rows must not be counted twice at the next look.
            self._seen[path.name] = ((0, 0, 0), before)
        self._seen[path.name] = (identity, max(before, seen))
        return fresh
