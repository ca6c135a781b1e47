"""The line of the program that is running, and the variables of its functions."""

from __future__ import annotations

import inspect
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

NOT_THEIRS = (
    str(Path(__file__).resolve().parents[2]),
    str(Path(torch.__file__).resolve().parent),
    str(Path(torch.__file__).parent),
    "<frozen",
    "<string",
)
"""How the names of files begin that are torch's, this package's or none."""

_LIBRARIES = (*NOT_THEIRS, *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")))
_FRAMES, _DEPTH = 4, 60
_ASKS_FOR_ALL = frozenset({"locals", "vars", "exec", "eval"})


def is_of_library(file: str) -> bool:
    """Whether a file is no part of the program itself."""
    return file.startswith(_LIBRARIES)


def frames_of_program() -> Iterator[FrameType]:
    """The innermost running functions that are of no library."""
    frame, left = sys._getframe(1), _FRAMES
    for _ in range(_DEPTH):
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            yield frame
            left -= 1
        if frame.f_back is None or not left:
            return
        frame = frame.f_back


def user_line(depth: int = 1) -> tuple[str, int]:
    """File and line of the nearest frame outside of torch and of this package; ("", 0) where there is none."""
    try:
        frame = sys._getframe(depth + 1)
    except ValueError:
        return "", 0
    for _ in range(40):
        name = frame.f_code.co_filename
        if not name.startswith(NOT_THEIRS):
            return name, frame.f_lineno
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "", 0


def running_frame(depth: int) -> FrameType | None:
    """The frame so many calls above the caller; None where the program has none left."""
    try:
        return sys._getframe(depth + 1)
    except ValueError:
        return None


def is_ours(frame: FrameType | None) -> bool:
    """Whether code of this package runs in this frame, or is what called torch there."""
    while frame is not None and frame.f_code.co_filename.startswith(NOT_THEIRS[1:]):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(NOT_THEIRS[0])


def line_of(frame: FrameType, place: int) -> int:
    """The line of one of a function's instructions."""
    return next((line or 0 for start, end, line in frame.f_code.co_lines() if start <= place < end), 0)


def living(code: CodeType, ended: Sequence[FrameType]) -> FrameType | None:
    """The innermost frame of this code, of those that an error has ended or of the stack."""
    frame: FrameType | None = next((each for each in ended if each.f_code is code), sys._getframe(1))
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def variables_of(frame: FrameType, names: Sequence[str] | None = None) -> dict[str, Any]:
    """The variables of a running function by name, as a copy: all of them, or those of these names that are there.

    Before Python 3.13 a frame keeps the dictionary that `f_locals` makes, and with it what the program deletes later.
    So it is emptied again, unless the program, a debugger or a profiler may have the same one.
    """
    kept = frame.f_locals
    copied = dict(kept) if names is None else {name: kept[name] for name in names if name in kept}
    if sys.version_info < (3, 13) and _is_a_copy(frame) and sys.gettrace() is None and sys.getprofile() is None:
        kept.clear()
    return copied


def _is_a_copy(frame: FrameType) -> bool:
    """Whether what `f_locals` gives is not where the variables are, and the code does not ask for it by itself."""
    code = frame.f_code
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and _ASKS_FOR_ALL.isdisjoint(code.co_names)
