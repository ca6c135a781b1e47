"""An append-only file of JSON lines, each with its own checksum.

A line is one JSON object whose last key is "crc", the CRC-32 of the bytes before it, so any JSON-lines reader opens
the file and ours can tell a whole line from a torn one. One write and one fdatasync a line: what `append` returned
from survives a kill and a power loss. A tail without its newline was never acknowledged and is cut off on reopening.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..records.errors import JournalError
from . import safe_files

MAX_LINE_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 30
_sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter
_CHECKSUM = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')


def encode_line(value: Mapping[str, Any]) -> bytes:
    """`value` (plain data, at least one key) as a checksummed line."""
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The object of a whole line without its newline, or None if it is torn or was changed."""
    match = _CHECKSUM.search(line)
    if match is None or zlib.crc32(line[: match.start()]) != int(match[1], 16):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    value.pop("crc", None)
    return value


class LineFile:
    """A file of checksummed lines open for appending. After an OSError, calling `append` again tries again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def append(self, line: bytes) -> None:
        """Puts one line on disk, whole or not at all; blocks until the disk has it."""
        if self._descriptor is None:
            self._descriptor = self._open()
        end: int | None = None
        try:
            about = os.fstat(self._descriptor)
            if about.st_nlink == 0:
                raise OSError(errno.ENOENT, "the file was removed", str(self.path))
            end = about.st_size
            safe_files.write_all(self._descriptor, line)
            _sync(self._descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                if end is not None:
                    os.ftruncate(self._descriptor, end)
            self.close()  # opened anew on the next call, which cuts off what could not be cut off here
            raise

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _open(self) -> int:
        fresh = not self.path.exists()
        descriptor = safe_files.open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            cut_torn_tail(descriptor)
            if fresh:
                safe_files.sync_directory(self.path.parent)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


def cut_torn_tail(descriptor: int) -> int:
    """Truncates after the last newline and returns how many bytes that removed."""
    size = end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
    return size - end


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file in order; torn, changed and overlong ones are passed over. No file, no lines."""
    try:
        descriptor = safe_files.open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {safe_files.why(error)}.") from error
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > MAX_FILE_BYTES:
            raise JournalError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB: steadygrad did not write it.")
        while line := file.readline(MAX_LINE_BYTES + 1):
            if line.endswith(b"\n") and (value := decode_line(line[:-1])) is not None:
                yield value
