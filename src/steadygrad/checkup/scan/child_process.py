"""Running something that may die of a bus error in a child, so that a person reads a sentence instead.

A mapped file is scanned a third faster than one that is read, but if someone cuts it short meanwhile (a training job
that saves over its old checkpoint does) the kernel answers the next touch with SIGBUS, which no Python code can catch.
The child does all the work, printing included; the parent only waits, and says what happened if the child is killed.
Forking is cheap and safe only from a process with one thread, so elsewhere it is not done.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

from ...records.errors import SteadyError
from .unreadable import Unreadable

_MAX_MESSAGE = 1 << 16
INTERRUPTED = 130


def can_guard() -> bool:
    """Whether this process may be forked: it has one thread, and no library in it that keeps its own threads."""
    quiet = threading.active_count() == 1 and "torch" not in sys.modules
    return quiet and hasattr(os, "fork") and _num_threads() == 1


def _num_threads() -> int:
    """Threads of this process as the kernel counts them: those of C libraries are unknown to Python."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 2  # not known: be careful


def guarded(action: Callable[[], int]) -> int:
    """The exit code of `action`, run in a child. Raises what a SteadyError in it says, and Unreadable if a file was cut
    short under it."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _work(action, writer)
    os.close(writer)
    # Ctrl-C reaches both: the child ends by it, and the parent has to be there to see that.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with os.fdopen(reader, "rb") as pipe:
            message = pipe.read(_MAX_MESSAGE).decode("utf-8", "replace")
        _, status = os.waitpid(child, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGBUS:
        raise Unreadable(
            "A file was cut short while it was being scanned, so nothing is known of it: scan it again when it is not "
            "being written."
        )
    if code < 0:
        raise Unreadable(f"The scan was ended by {signal.Signals(-code).name}.")
    if message:
        error = SteadyError(message)
        error.exit_code = code
        raise error
    return code


def _work(action: Callable[[], int], writer: int) -> NoReturn:
    """The child's whole life. It must never return into the parent's code."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = action()
        sys.stdout.flush()
    except SteadyError as error:
        os.write(writer, str(error).encode()[:_MAX_MESSAGE])
        code = error.exit_code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
