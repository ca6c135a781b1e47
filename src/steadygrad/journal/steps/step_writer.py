"""The step journal: `put` on the training thread, `drain` on the journal's own.

`put` copies a record into a queue and returns; it takes no lock, touches no disk and never raises. The queue is
bounded: if the disk is too slow or full, the oldest records are dropped and counted. `drain` writes what has
gathered as one Arrow batch. When a write fails, the rows stay in the queue, the segment is given up (cut back to its
last whole batch) and the next attempt opens a new one.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...records import StepRecord
from .. import safe_files
from ..journal_health import JournalHealth
from ..run_directory import RunDirectory, listing
from .columns import Row, batch_of, row_of
from .segment import Segment, cut_torn_tail, encode_batch, segments

PART = "steps"


class StepWriter:
    """Writes `steps/rankN-NNNN.arrow`. `wake` is called when the queue fills faster than it is drained."""

    def __init__(
        self,
        run: RunDirectory,
        *,
        names: Sequence[str] = (),
        health: JournalHealth | None = None,
        norms_every: int = 10,
        max_queue: int = 4096,
        segment_bytes: int = 8 << 20,
        merge_after: int = 256,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.health = health or JournalHealth()
        self.written = 0
        self._run = run
        self._names = tuple(names)
        self._norms_every = max(1, norms_every)
        self._max_queue = max(2, max_queue)
        self._wake_at = max(1, self._max_queue // 2)
        self._segment_bytes = segment_bytes
        self._merge_after = max(2, merge_after)
        self._wake = wake
        self._queue: deque[Row] = deque()
        self._taken: list[Row] = []  # off the queue and not yet on disk; the journal's thread only
        self._segment: Segment | None = None
        self._segment_names: tuple[str, ...] | None = None
        self._retry_at = 0.0
        self._pause = 0.5
        found = segments(listing(run.steps))
        self._number = max((number for number, rank, _ in found if rank == run.rank), default=0)
        for _, rank, name in found:
            if rank == run.rank:
                with contextlib.suppress(OSError):
                    cut_torn_tail(safe_files.inside(run.steps, name))

    @property
    def degraded(self) -> str | None:
        """Why steps are not all being kept at present, or None."""
        return self.health.degraded

    @property
    def waiting(self) -> int:
        """How many records are not on disk yet."""
        return len(self._queue) + len(self._taken)

    def put(self, record: StepRecord) -> None:
        """Queues a record. Host only: no device sync, no lock, no disk; microseconds; never raises."""
        try:
            keep = record.step % self._norms_every == 0 or bool(record.flags) or not record.applied
            row = row_of(record, self._names, norms=keep and len(record.norms) > 0)
            queue = self._queue
            if len(queue) >= self._max_queue:
                self.health.fail(PART, f"the disk is slower than the run: {self._max_queue} steps are waiting")
                with contextlib.suppress(IndexError):  # drained in this moment
                    queue.popleft()
                    self.health.drop()
            queue.append(row)
            if len(queue) == self._wake_at:
                self._wake()
        except Exception as error:
            self.health.fail(PART, f"a step record could not be kept: {error}")
            self.health.drop()

    def set_names(self, names: Sequence[str]) -> None:
        """From the next record on `norms` speaks of these tensors. They stand in a segment's head, so that record
        starts a new segment. Call on the thread that puts."""
        if tuple(names) != self._names:
            self._names = tuple(names)

    def drain(self, *, now: bool = False) -> bool:
        """Writes what has gathered; True if nothing is left waiting. After a failure it tries again at growing
        intervals, at once if `now`. Blocks on the disk: never called on the training thread."""
        self._take()
        if not self._taken:
            return True
        if not now and time.monotonic() < self._retry_at:
            return False
        bad = 0
        try:
            while self._taken:
                bad += self._write_some()
        except Exception as error:
            self._end_segment(whole=False)
            self._pause = min(self._pause * 2, 5.0)
            self._retry_at = time.monotonic() + self._pause
            self.health.fail(PART, f"steps cannot be written: {safe_files.why(error)}")
            return False
        self._retry_at, self._pause = 0.0, 0.5
        if bad:
            self.health.fail(PART, f"{bad} step records held values that no column fits")
            self.health.drop(bad)
        else:
            self.health.recover(PART)
        return True

    def close(self) -> None:
        """Writes what it can and ends the segment. What a full disk refuses now is dropped and counted."""
        if not self.drain(now=True):
            self.health.drop(len(self._taken))
            self._taken = []
        self._end_segment(whole=True)

    def _write_some(self) -> int:
        """Writes the taken rows up to a change of names; returns how many of them could not be encoded."""
        names = self._taken[0][-1]
        rows = list(itertools.takewhile(lambda row: row[-1] is names, self._taken))
        batch, bad = _encode(rows)
        if batch is not None:
            self._append(batch, names)
        del self._taken[: len(rows)]
        self.written += len(rows) - bad
        return bad

    def _append(self, batch: Any, names: tuple[str, ...]) -> None:
        if names is not self._segment_names:
            self._end_segment(whole=True)
        if self._segment is None:
            number = self._number + 1
            self._segment = Segment(
                self._run.steps,
                run_id=self._run.run_id,
                rank=self._run.rank,
                number=number,
                names=names,
                merge_after=self._merge_after,
            )
            self._number, self._segment_names = number, names
        self._segment.append(batch)
        if self._segment.size >= self._segment_bytes:
            self._end_segment(whole=True)

    def _take(self) -> None:
        """Moves what has gathered off the queue. While the disk refuses, the oldest are dropped for the newest."""
        with contextlib.suppress(IndexError):
            for _ in range(self._max_queue):
                self._taken.append(self._queue.popleft())
        too_many = len(self._taken) - self._max_queue
        if too_many > 0:
            del self._taken[:too_many]
            self.health.drop(too_many)

    def _end_segment(self, *, whole: bool) -> None:
        if self._segment is not None:
            self._segment.close(whole=whole)
            self._segment = None


def warm_up() -> None:
    """Makes pyarrow load what it loads on first use, so that this falls neither into a step nor into the exit."""
    encode_batch(batch_of([row_of(StepRecord(run="", step=0), (), norms=False)]), level=1)


def _encode(rows: list[Row]) -> tuple[Any, int]:
    """A batch of the rows that can be encoded, None if there are none, and the number of those that cannot."""
    try:
        return batch_of(rows), 0
    except Exception:
        good = [row for row in rows if _fits(row)]
        return (batch_of(good) if good else None), len(rows) - len(good)


def _fits(row: Row) -> bool:
    try:
        batch_of([row])
    except Exception:
        return False
    return True
