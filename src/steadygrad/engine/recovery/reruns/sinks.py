"""Files that a step opens while it is run again: what it writes goes to memory, and the disk stays as it is.

`open` and `torch.save` are replaced while some thread runs a step again, and write to memory in that thread; other
threads, and steadygrad itself, write as ever. Opening a file to read it opens the file.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import sys
import tempfile
import threading
import types
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ....detect.tensors.foreign_objects import getattr, hasattr, isinstance

_PACKAGE = str(Path(__file__).resolve().parents[3])
_STANDARD, _TORCH = str(Path(types.__file__).resolve().parent), str(Path(torch.__file__).resolve().parent)
_COMPILERS = ("/torch/_inductor/", "/torch/_dynamo/", "/triton/", "/torch/utils/cpp_extension", "<frozen importlib")
_MOST_COPIED = 64 << 20
"""Bytes of a file that are copied where a step reads and writes it."""
_WRITING = frozenset("wax+")
_lock = threading.Lock()
_silent: Counter[int] = Counter()
_before: list[Any] = []
_sinks: dict[int, Any] = {}
_read: weakref.WeakSet[Any] = weakref.WeakSet()


class HasEffect(BaseException):
    """A line that is run again would leave a trace. Not an Exception, so that no handler of the loop takes it."""


@contextlib.contextmanager
def nothing_on_disk() -> Iterator[None]:
    """Inside, what this thread writes to files that it opens goes to memory. May be nested."""
    thread = threading.get_ident()
    with _lock:
        if not _silent and builtins.open is not _open:
            _before[:] = (builtins.open, io.open, torch.save)
            builtins.open = io.open = _open
            torch.save = _save
        _silent[thread] += 1
    try:
        yield
    finally:
        with _lock:
            _silent[thread] -= 1
            if not _silent[thread]:
                del _silent[thread]
            if not _silent:
                _put_back()


def _put_back() -> None:
    """The functions that were there, unless someone else has replaced ours: that one calls ours, and ours theirs."""
    if builtins.open is _open:
        builtins.open = _before[0]
    if io.open is _open:
        io.open = _before[1]
    if torch.save is _save:
        torch.save = _before[2]
    for sink in list(_sinks.values()):
        sink.close()
    _sinks.clear()


def is_sink(file: Any) -> bool:
    """Whether a file was opened here."""
    return _sinks.get(id(file)) is file


def is_read_inside(file: Any) -> bool:
    """Whether a file was opened while a step is run again, to be read."""
    return file in _read


def sink_like(file: Any) -> Any:
    """A file in memory that is written to in place of this one, which is open for writing only."""
    size = 0
    with contextlib.suppress(OSError, ValueError):
        size = file.tell()
    text = isinstance(file, io.TextIOBase)
    options = {"encoding": getattr(file, "encoding", None) or "utf-8", "errors": file.errors} if text else {}
    sink = _in_memory("a" if text else "ab", -1, options, size, b"")
    with contextlib.suppress(AttributeError, TypeError):
        _parts(sink)[-1].name = getattr(file, "name", "")
    return sink


def _open(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **options: Any) -> Any:
    original: Any = _before[0]
    if (
        threading.get_ident() not in _silent
        or not isinstance(mode, str)
        or not _WRITING & set(mode)
        or isinstance(file, int)
        or not _asked_by_the_step(sys._getframe(1))
    ):
        opened = original(file, mode, buffering, *args, **options)
        if threading.get_ident() in _silent:
            _read.add(opened)
        return opened
    options |= dict(zip(("encoding", "errors", "newline", "closefd", "opener"), args, strict=False))
    options = {key: value for key, value in options.items() if key not in ("closefd", "opener")}
    path = os.fspath(file)
    size, content = 0, b""
    if "w" not in mode and "x" not in mode and os.path.exists(path):
        size = os.path.getsize(path)
        if "+" in mode:
            if size > _MOST_COPIED:
                raise HasEffect(f"it opens {path!r} for reading and writing")
            with original(path, "rb") as there:
                content = there.read()
    elif "r" in mode:
        return original(file, "r")  # raises what it raises: there is no such file
    sink = _in_memory(mode, buffering, options, size, content)
    with contextlib.suppress(AttributeError, TypeError):
        _parts(sink)[-1].name = path
    if "r" in mode:
        sink.seek(0)
    return sink


def _in_memory(mode: str, buffering: int, options: dict[str, Any], size: int, content: bytes) -> Any:
    """A file that no directory lists, so long, at its end."""
    watching = sys.getprofile()
    sys.setprofile(None)  # it is no file of the program
    try:
        number = _unlisted()
        if content:
            os.write(number, content)
        elif size:
            os.ftruncate(number, size)
    finally:
        sys.setprofile(watching)
    opened: Any = _before[0] if _before else builtins.open
    sink = opened(number, mode.replace("x", "w"), buffering, **options)
    sink.seek(0, os.SEEK_END)
    _sinks.update((id(part), part) for part in _parts(sink))
    return sink


def _unlisted() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("steadygrad")
    number, path = tempfile.mkstemp()
    os.unlink(path)
    return number


def _parts(file: Any) -> list[Any]:
    """A text file, its buffer and the file in it; a binary file has fewer."""
    parts = [file]
    for name in ("buffer", "raw"):
        if (inner := getattr(parts[-1], name, None)) is not None:
            parts.append(inner)
    return parts


def _save(*args: Any, **kwargs: Any) -> Any:
    if threading.get_ident() not in _silent or not _asked_by_the_step(sys._getframe(1)):
        return _before[2](*args, **kwargs)
    return None


def _asked_by_the_step(frame: types.FrameType | None) -> bool:
    """Whether the code that is run again opens a file, and not steadygrad around it, or a compiler in it."""
    while frame is not None:
        file = frame.f_code.co_filename
        if any(part in file for part in _COMPILERS):
            return False
        if file.startswith(_PACKAGE):
            return False
        if not file.startswith((_TORCH, "<frozen")) and not (file.startswith(_STANDARD) and "-packages" not in file):
            return True
        frame = frame.f_back
    return False
