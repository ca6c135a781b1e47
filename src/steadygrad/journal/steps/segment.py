"""One Arrow IPC stream being written: whole batches appended, small ones merged, never a torn one left inside.

Rows reach the disk about once a second. With steps of a second each that is one row a batch, and a batch costs over a
kilobyte of framing however little it holds. So the loose small batches at the end of the file are merged from time to
time: a new file with the settled part copied and one batch in place of the loose ones is renamed over the old.
A reader, and a kill, find the same rows before and after.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from .. import safe_files
from .columns import SCHEMA, schema_of
from .ipc_frames import END_OF_STREAM, frames

_NAME = re.compile(r"rank([0-9]{1,6})-([0-9]{4,9})\.arrow")
_LOOSE_ROWS = 512  # a batch of at least this many rows is left as it is
_MERGE_ROWS = 8192  # loose rows are held in memory until they are merged
MAX_SEGMENT_BYTES = 1 << 30
_LEVEL_ONCE, _LEVEL_SETTLED = 1, 9


def segment_name(rank: int, number: int) -> str:
    return f"rank{rank}-{number:04d}.arrow"


def segments(names: Sequence[str]) -> list[tuple[int, int, str]]:
    """(number, rank, name) of the step segments among `names`: by number, then by rank."""
    found = [(int(match[2]), int(match[1]), name) for name in names if (match := _NAME.fullmatch(name))]
    return sorted(found)


class Segment:
    """A segment open for appending. After an OSError from `append` it is done for: close it and open the next."""

    def __init__(
        self, directory: Path, *, run_id: str, rank: int, number: int, names: Sequence[str], merge_after: int
    ) -> None:
        self.path = safe_files.inside(directory, segment_name(rank, number))
        self.rows = 0
        self._merge_after = merge_after
        self._loose: list[Any] = []
        schema = schema_of(run_id=run_id, rank=rank, names=names, segment=number)
        head = encode_schema(schema)
        if not safe_files.create_file(self.path, head):  # with its schema whole from its first moment on
            raise FileExistsError(errno.EEXIST, "a segment of that number is already there", str(self.path))
        self._descriptor = safe_files.open_regular(self.path, os.O_RDWR | os.O_APPEND)
        self._settled = self.size = len(head)

    def append(self, batch: Any) -> None:
        """Adds a batch, whole or not at all."""
        data = encode_batch(batch, level=_LEVEL_SETTLED if batch.num_rows >= _LOOSE_ROWS else _LEVEL_ONCE)
        if os.fstat(self._descriptor).st_nlink == 0:
            raise OSError(errno.ENOENT, "the segment was removed", str(self.path))
        try:
            safe_files.write_all(self._descriptor, data)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(data)
        self.rows += batch.num_rows
        if batch.num_rows >= _LOOSE_ROWS and not self._loose:
            self._settled = self.size
        else:
            self._loose.append(batch)
            if len(self._loose) >= self._merge_after or sum(loose.num_rows for loose in self._loose) >= _MERGE_ROWS:
                self.merge()

    def merge(self) -> None:
        """Puts one batch in place of the loose ones. A disk too full for it keeps the loose ones: nothing is lost."""
        if len(self._loose) < 2:
            return
        try:
            merged = pa.Table.from_batches(self._loose).combine_chunks().to_batches()
            tail = b"".join(encode_batch(batch, level=_LEVEL_SETTLED) for batch in merged)
            with safe_files.temporary_file(self.path.parent) as (descriptor, temporary):
                safe_files.write_all(descriptor, self._settled_bytes())
                safe_files.write_all(descriptor, tail)
                os.fsync(descriptor)
                # Opened before the rename: from then on this is the only file that may be appended to.
                fresh = safe_files.open_regular(temporary, os.O_RDWR | os.O_APPEND)
                try:
                    os.replace(temporary, self.path)
                except OSError:
                    os.close(fresh)
                    raise
        except Exception:
            # The rows are safe in the file as it is. Trying again at every flush would copy the file each time.
            self._merge_after *= 2
            return
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = fresh
        self.size = self._settled = self._settled + len(tail)
        self._loose.clear()

    def close(self, *, whole: bool = True) -> None:
        """Merges what is loose, marks the end of the stream and gives the file to the disk. Does not raise."""
        with contextlib.suppress(OSError):
            if whole:
                self.merge()
                safe_files.write_all(self._descriptor, END_OF_STREAM)
                os.fsync(self._descriptor)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def _settled_bytes(self) -> bytes:
        data = bytearray()
        while len(data) < self._settled:
            chunk = os.pread(self._descriptor, self._settled - len(data), len(data))
            if not chunk:
                raise OSError("the segment was cut short by another process")
            data += chunk
        return bytes(data)


def cut_torn_tail(path: Path) -> int:
    """Cuts a killed writer's incomplete last message off, so that other tools read the segment too. Returns how many
    bytes that removed. Only for segments no one writes any more."""
    descriptor = safe_files.open_regular(path, os.O_RDWR)
    try:
        size = os.fstat(descriptor).st_size
        if os.pread(descriptor, 8, max(0, size - 8)) == END_OF_STREAM or size > MAX_SEGMENT_BYTES:
            return 0
        end = max((frame.end for frame in frames(safe_files.read_file(path, limit=MAX_SEGMENT_BYTES))), default=0)
        if 0 < end < size:
            os.ftruncate(descriptor, end)
            return size - end
        return 0
    finally:
        os.close(descriptor)


def encode_schema(schema: Any) -> bytes:
    """The first message of a stream."""
    return bytes(schema.serialize())


def encode_batch(batch: Any, *, level: int) -> bytes:
    """One message of a stream, zstd-compressed."""
    sink = pa.BufferOutputStream()
    # A batch is small: starting Arrow's own threads inside someone's training process would not pay.
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=level), use_threads=False)
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    _, message = frames(data)  # the schema comes first and is already in the file
    return data[message.start : message.end]
