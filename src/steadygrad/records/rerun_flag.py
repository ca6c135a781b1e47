"""Whether a step is being run again: a replay of a diagnosis, a trial of a remedy, a rerun of the engine.

Code that counts training passes asks `rerunning()` and leaves reruns out. It is a number of the process and not of the
thread: autograd runs hooks on its own threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
passes = 0
"""How many such passes are under way now."""


@contextmanager
def rerun() -> Iterator[None]:
    """Around every pass that is not a training pass of the user's own loop. May be nested."""
    global passes
    with _lock:
        passes += 1
    try:
        yield
    finally:
        with _lock:
            passes -= 1


def rerunning() -> bool:
    """Whether a pass that is made now is a rerun."""
    return passes > 0
