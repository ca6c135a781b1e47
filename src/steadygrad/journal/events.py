"""Events and quarantine: small things that must not be lost, one checksummed line each (see checksummed_lines.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..records import from_plain, to_plain
from ..records.errors import JournalError
from .checksummed_lines import MAX_LINE_BYTES, encode_line, read_lines
from .run_directory import rank_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something the guard did or met: a decision, a rung of the ladder, its own fault, a degraded period."""

    kind: str
    time: float
    rank: int = 0
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A batch that was refused. `rows` is None when the whole batch is meant."""

    batch_key: str
    step: int
    cause: str = ""
    rows: tuple[int, ...] | None = None
    sample_ids: tuple[str, ...] = ()
    rank: int = 0
    time: float = 0.0


def encode_event(kind: str, data: Mapping[str, Any], *, rank: int) -> bytes:
    """One line. Data too large for a line is left out and said to be."""
    event = Event(kind=str(kind), time=time.time(), rank=rank, data=dict(data))
    line = encode_line(to_plain(event))
    if len(line) > MAX_LINE_BYTES:
        line = encode_line(
            {"kind": event.kind[:200], "time": event.time, "rank": rank, "data": {"too_large": len(line)}}
        )
    return line


def encode_quarantined(entry: Quarantined) -> bytes:
    """One line. A batch with more sample ids than a line holds is quarantined by its key and rows."""
    line = encode_line(to_plain(entry))
    if len(line) > MAX_LINE_BYTES:
        line = encode_line(to_plain(entry) | {"sample_ids": []})
    if len(line) > MAX_LINE_BYTES:
        raise JournalError(f"The quarantine entry of step {entry.step} has {len(line)} bytes: too large for a line.")
    return line


def read_events(run_dir: str | os.PathLike[str]) -> list[Event]:
    """The events of all ranks in the order of their time."""
    found = [event for path in rank_files(run_dir, "events", ".jsonl") for event in _typed(Event, path)]
    return sorted(found, key=lambda event: event.time)


def read_quarantine(run_dir: str | os.PathLike[str]) -> list[Quarantined]:
    """The refused batches of all ranks, rank 0 first, in the order they were refused."""
    paths = rank_files(run_dir, "quarantine", ".jsonl")
    return [entry for path in paths for entry in _typed(Quarantined, path)]


def _typed(kind: Any, path: Any) -> Iterator[Any]:
    for data in read_lines(path):
        try:
            yield from_plain(kind, data)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise JournalError(f"{path} holds a line steadygrad did not write: {str(error)[:200]}.") from error


def quarantined(
    batch_key: str, *, step: int, cause: str, rows: Sequence[int] | None, sample_ids: Sequence[object], rank: int
) -> Quarantined:
    """An entry stamped with the time it is now."""
    return Quarantined(
        batch_key=str(batch_key),
        step=int(step),
        cause=str(cause),
        rows=None if rows is None else tuple(int(row) for row in rows),
        sample_ids=tuple(str(sample) for sample in sample_ids),
        rank=rank,
        time=time.time(),
    )
