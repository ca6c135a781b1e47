"""The program's own code is run again without being heard: nothing is printed, logged, tracked or warned of, and
nothing written to files that it opens."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from ....detect.tensors.foreign_objects import getattr
from .muted_trackers import muted_trackers
from .sinks import nothing_on_disk

_IGNORE = ("ignore", None, Warning, None, 0)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, what this thread prints, logs, warns of or writes to files that it opens goes nowhere. May be nested."""
    thread = threading.get_ident()
    handle = logging.Logger.handle

    def handled(self: logging.Logger, record: logging.LogRecord) -> None:
        if threading.get_ident() != thread:
            handle(self, record)

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(_Nowhere(sys.stdout, thread)))
        stack.enter_context(contextlib.redirect_stderr(_Nowhere(sys.stderr, thread)))
        stack.enter_context(no_warnings())
        stack.enter_context(muted_trackers())
        stack.enter_context(nothing_on_disk())
        logging.Logger.handle = handled  # type: ignore[method-assign]
        try:
            yield
        finally:
            logging.Logger.handle = handle  # type: ignore[method-assign]


class _Nowhere:
    """A stream that forgets what one thread writes; for the others it is the stream in whose place it stands."""

    def __init__(self, stream: Any, thread: int) -> None:
        self._stream, self._thread = stream, thread

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if threading.get_ident() != self._thread:
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """Inside, warnings are ignored. After `warnings.catch_warnings` Python forgets which warnings the program has shown
    already, and shows each of them once more; not after this."""
    module: Any = warnings
    filters, before, show = module.filters, list(module.filters), module.showwarning
    filters.insert(0, _IGNORE)
    try:
        yield
    finally:
        filters[:] = before
        module.filters, module.showwarning = filters, show
