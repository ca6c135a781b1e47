"""A traceback without our own frames: what the program would have shown alone. No torch."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).resolve().parents[3])


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The same traceback with the frames of steadygrad left out, unless that would leave nothing."""
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OURS):
            kept.append(trace)
        trace = trace.tb_next
    clean: TracebackType | None = None
    for entry in reversed(kept):
        clean = TracebackType(clean, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return clean


def without_patches(trace: TracebackType | None) -> TracebackType | None:
    """The same traceback without our frames where it is of an error that came out of the program or a library; one that
    our own code raised is shown whole."""
    last = trace
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or last.tb_frame.f_code.co_filename.startswith(_OURS):
        return trace
    return without_ours(trace)


def clean(error: BaseException) -> None:
    """Take our frames out of an error's traceback and out of those of the errors behind it."""
    seen: set[int] = set()
    behind: list[BaseException | None] = [error]
    while behind:
        each = behind.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = without_ours(each.__traceback__) or each.__traceback__
        behind += [each.__cause__, each.__context__]
