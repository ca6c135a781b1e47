"""Reading the steps of a run, one's own or a stranger's.

A segment is read into memory (its size is bounded), its frames are walked, what they claim to unpack to is bounded,
and every batch is checked in full before a value is touched. A torn tail is left out. Nothing is executed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...records import StepRecord
from ...records.errors import JournalError
from .. import safe_files
from ..run_directory import listing, open_run, read_run
from .columns import SCHEMA, STEPS_FORMAT, STEPS_VERSION, names_of, records_of
from .ipc_frames import RECORD_BATCH, frames
from .ipc_frames import SCHEMA as SCHEMA_FRAME
from .segment import MAX_SEGMENT_BYTES, segments

MAX_UNPACKED_BYTES = 4 << 30
MAY_BE_NULL = ("batch_key", "loss_scale", "norms")


def read_batches(run_dir: str | os.PathLike[str]) -> Iterator[Any]:
    """The record batches of all segments in order, ranks side by side. Each batch's schema carries its segment's
    metadata. Memory: one segment at a time."""
    for path in segment_paths(run_dir):
        yield from read_segment(path)


def read_steps(run_dir: str | os.PathLike[str]) -> Iterator[StepRecord]:
    """The records of all segments in order."""
    run_id = str(read_run(run_dir)["run"])
    for batch in read_batches(run_dir):
        yield from records_of(batch, run_id=run_id)


def steps_table(
    run_dir: str | os.PathLike[str], *, columns: Sequence[str] | None = None, allow_empty: bool = False
) -> Any:
    """All steps as one pyarrow table, or the named columns of it, in the order they were settled.

    Raises JournalError if no step was written yet, unless `allow_empty`.
    """
    wanted = SCHEMA if columns is None else pa.schema([_field(name) for name in columns])
    batches = [batch.select(wanted.names).replace_schema_metadata() for batch in read_batches(run_dir)]
    if not batches and not allow_empty:
        raise JournalError(f"{run_dir} holds no steps yet: the run was made, and nothing was settled in it.")
    return pa.Table.from_batches(batches, schema=wanted)


def tensor_names(run_dir: str | os.PathLike[str]) -> tuple[str, ...]:
    """The tensors that `norms` speaks of, from the newest segment that names any."""
    for path in reversed(segment_paths(run_dir)):
        schema = _schema(_whole_frames(path)[0], path)
        if schema is not None and (names := names_of(schema)):
            return names
    return ()


def segment_paths(run_dir: str | os.PathLike[str]) -> list[Path]:
    """The step segments of a run: by number, then by rank."""
    root = open_run(run_dir)
    directory = safe_files.inside(root, "steps")
    if not directory.exists():
        return []
    return [safe_files.inside(directory, name) for _, _, name in segments(listing(directory))]


def read_segment(path: Path) -> Iterator[Any]:
    """The whole batches of one segment."""
    data, unpacked = _whole_frames(path)
    schema = _schema(data, path)
    if schema is None:
        return
    if unpacked > MAX_UNPACKED_BYTES:
        raise JournalError(f"{path} claims to unpack to {unpacked} bytes: steadygrad did not write it.")
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            for batch in reader:
                batch.validate(full=True)
                _check_nulls(batch)
                yield batch
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise JournalError(f"{path} is damaged: {str(error)[:200]}.") from error


def _check_nulls(batch: Any) -> None:
    """A step without a number or a loss is none: whoever reads on may rely on values being there."""
    lists = [batch.column(name).flatten() for name in ("flags", "norms")]
    required = [batch.column(name) for name in SCHEMA.names if name not in MAY_BE_NULL]
    if any(values.null_count for values in (*required, *lists, batch.column("terms").items)):
        raise ValueError("a value is missing where there must be one")


def _whole_frames(path: Path) -> tuple[bytes, int]:
    """The bytes up to the end of the last whole message, and how much they claim to unpack to."""
    try:
        data = safe_files.read_file(path, limit=MAX_SEGMENT_BYTES)
    except JournalError:
        raise
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {safe_files.why(error)}.") from error
    end = unpacked = 0
    for frame in frames(data):
        if frame.kind != (SCHEMA_FRAME if frame.start == 0 else RECORD_BATCH):
            raise JournalError(f"{path} holds a message of a kind steadygrad does not write.")
        end, unpacked = frame.end, unpacked + frame.unpacked
    return data[:end], unpacked


def _schema(data: bytes, path: Path) -> Any:
    """The schema of a segment after checking that it is ours; None if not even that was written whole."""
    if not data:
        return None
    try:
        schema = pa.ipc.open_stream(pa.py_buffer(data)).schema
        about = schema.metadata or {}
        ours, version = about.get(b"steadygrad.format"), int(about.get(b"steadygrad.version", b"0"))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise JournalError(f"{path} is damaged: {str(error)[:200]}.") from error
    if ours == STEPS_FORMAT.encode() and version > STEPS_VERSION:
        raise JournalError(
            f"{path} has format version {version} and this steadygrad reads up to {STEPS_VERSION}: upgrade steadygrad."
        )
    if ours != STEPS_FORMAT.encode() or version < 1 or not schema.equals(SCHEMA, check_metadata=False):
        raise JournalError(f"{path} is an Arrow file, but not steps that steadygrad wrote.")
    return schema


def _field(name: str) -> Any:
    if name not in SCHEMA.names:
        raise JournalError(f"There is no column {name!r} in the steps of a run: choose from {', '.join(SCHEMA.names)}.")
    return SCHEMA.field(name)
