"""A file being scanned: read in pieces at given places, or mapped by whoever is prepared for what that means.

A mapped file that someone cuts short kills the reader with a bus error; a read comes back short and can be reported.
Links are followed, because model caches consist of them, but only a regular file is opened: a pipe would block.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from .unreadable import Unreadable as Unreadable


class Source:
    """One open file. `read` and `fill` may be called from several threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise Unreadable(f"{path} cannot be opened: {_why(error)}.") from error
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise Unreadable(f"{path} is not a regular file.")
        self.size = status.st_size

    def read(self, offset: int, length: int) -> bytes:
        """Exactly these bytes."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Unreadable(f"{self.path} has {self.size:,} bytes, and bytes up to {offset + length:,} are wanted.")
        parts = []
        try:
            while length:
                part = os.pread(self._descriptor, length, offset)
                if not part:
                    raise Unreadable(f"{self.path} was cut short while it was being read.")
                parts.append(part)
                offset, length = offset + len(part), length - len(part)
        except OSError as error:
            raise Unreadable(f"{self.path} cannot be read: {_why(error)}.") from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fill(self, buffer: Any, offset: int) -> None:
        """Fill the whole of a writable array of bytes from this place on. Allocates nothing."""
        wanted = len(buffer)
        try:
            done = os.preadv(self._descriptor, (buffer,), offset)
            while done < wanted:
                got = os.preadv(self._descriptor, (buffer[done:],), offset + done)
                if got <= 0:
                    raise Unreadable(f"{self.path} was cut short while it was being read.")
                done += got
        except OSError as error:
            raise Unreadable(f"{self.path} cannot be read: {_why(error)}.") from error

    def window(self, offset: int, length: int) -> Any:
        """These bytes as a read-only array over a map, which lives as long as the array. Touching it may be a bus error
        if the file is cut short meanwhile."""
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        if offset + length > os.fstat(self._descriptor).st_size:
            raise Unreadable(f"{self.path} was cut short while it was being read.")
        try:
            mapped = mmap.mmap(self._descriptor, offset - start + length, prot=mmap.PROT_READ, offset=start)
        except (OSError, ValueError) as error:
            raise Unreadable(f"{self.path} cannot be mapped: {error}.") from error
        return np.frombuffer(mapped, np.uint8)[offset - start :]

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _why(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
