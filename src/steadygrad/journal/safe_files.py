"""Opening, writing and replacing files so that a kill, a full disk or a planted link cannot hurt a run.

Everything the journal puts on disk goes through here. A whole file is replaced (temporary file in the same directory,
write, fsync, rename, fsync of the directory), never edited, so a reader sees the old one or the new one. Links are
never followed inside a run, and only regular files are opened: a named pipe would block, a device would answer.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..records.errors import JournalError

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
MAX_JSON_BYTES = 64 << 20
TEMPORARY_PREFIX = ".writing-"
Bytes = bytes | bytearray | memoryview


def why(error: BaseException) -> str:
    """An operating system error in the words the system has for it, without our paths."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def inside(root: Path, *parts: str) -> Path:
    """`root/parts...`, refusing any part that climbs out or is a symbolic link. `root` itself is the user's choice."""
    path = root
    for part in parts:
        if part in ("", ".", "..") or "/" in part or "\0" in part:
            raise JournalError(f"{part!r} is not a name inside the run directory {root}: nothing outside it is read.")
        path = path / part
        if path.is_symlink():
            raise JournalError(f"{path} is a symbolic link: links inside a run directory are not followed. Remove it.")
    return path


def make_directory(path: Path) -> Path:
    """A private directory at `path`, made if it is not there."""
    try:
        path.mkdir(mode=DIRECTORY_MODE)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    return path


def open_regular(path: Path, flags: int) -> int:
    """A descriptor on the regular file at `path`: never a link, a pipe or a device."""
    # O_NONBLOCK makes opening a pipe return instead of waiting for its other end; a regular file does not mind.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def write_all(descriptor: int, data: Bytes) -> None:
    """Every byte of `data`. A filling disk first writes short without an error and only then says that it is full."""
    view = memoryview(data).cast("B")
    while view:
        written = os.write(descriptor, view)
        if written <= 0:
            raise OSError(errno.EIO, "the file accepted no bytes")
        view = view[written:]


def sync_directory(path: Path) -> None:
    """Makes a rename or a new name in `path` survive a power loss, where the file system can."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot; the rename still holds
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def temporary_file(directory: Path) -> Iterator[tuple[int, Path]]:
    """A new file of ours in `directory`, removed on leaving unless it was renamed away."""
    descriptor, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=directory)
    try:
        yield descriptor, Path(name)
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(name)


def replace_file(path: Path, *chunks: Bytes) -> None:
    """Puts a whole file at `path` or leaves what was there: after a kill it is the old one or the new one."""
    with temporary_file(path.parent) as (descriptor, temporary):
        for chunk in chunks:
            write_all(descriptor, chunk)
        os.fsync(descriptor)
        os.replace(temporary, path)
    sync_directory(path.parent)


def create_file(path: Path, data: Bytes) -> bool:
    """Like `replace_file`, but only if nothing is at `path` yet; False if another process or program was first."""
    with temporary_file(path.parent) as (descriptor, temporary):
        write_all(descriptor, data)
        os.fsync(descriptor)
        try:
            os.link(temporary, path, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            if path.exists():  # a file system without hard links: a small race is left between two ranks
                return False
            os.replace(temporary, path)
    sync_directory(path.parent)
    return True


def read_file(path: Path, *, limit: int) -> bytes:
    """The bytes of a regular file, refusing one larger than `limit`. Read, not mapped: a file cut short under a map
    kills the reader."""
    descriptor = open_regular(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise JournalError(f"{path} has {size} bytes, more than the {limit} allowed: steadygrad did not write it.")
        chunks, left = [], limit
        while left and (chunk := file.read(min(left, 1 << 20))):
            chunks.append(chunk)
            left -= len(chunk)
    return b"".join(chunks)


def json_bytes(value: Any) -> bytes:
    """Indented for a person; non-finite floats must already be strings."""
    return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"


def read_json(path: Path, *, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The object in a JSON file of a run, or one sentence on what is wrong with it."""
    try:
        value = json.loads(read_file(path, limit=limit))
    except JournalError:
        raise
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {why(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise JournalError(f"{path} is not JSON that steadygrad wrote: {why(error)[:200]}.") from error
    if not isinstance(value, dict):
        raise JournalError(f"{path} holds no JSON object: steadygrad did not write it.")
    return value
