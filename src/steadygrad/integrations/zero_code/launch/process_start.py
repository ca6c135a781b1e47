"""Arms a process of a guarded program once torch is there, and notes how the process ended. No torch.

One hook a library, run when that library has been imported: importing one inside another's hook can make a circle.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from .import_hook import when_imported
from .own_imports import own_imports
from .run_options import RunOptions
from .torchrun_restarts import why_it_may_hang

if TYPE_CHECKING:
    from ..process_loop import ProcessLoop

_watch: ProcessLoop | None = None
_note: _Note | None = None


def begin(settings: RunOptions | None = None) -> None:
    """Arm this process, now or when torch has been imported."""
    global _note
    from_outside = settings is None
    settings = settings or RunOptions.from_environment(os.environ)
    if settings is None:
        return
    if (warning := why_it_may_hang(os.environ)) and os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"steady run: {warning}", file=sys.stderr)
    if from_outside:
        _log_to_stderr()
    when_imported("torch", lambda module: _torch_is_here(module, settings))
    if settings.reports is not None:
        _note = _Note(settings)
        _note.listen()
    os.register_at_fork(after_in_child=lambda: _forked(settings))


def _forked(settings: RunOptions) -> None:
    """A forked child is a process like others: what it trains is guarded, and reported apart from its parent's."""
    global _watch
    before, _watch = _watch, None
    if before is None:
        return
    try:
        before.stop()
    finally:
        _torch_is_here(None, settings)
        if _note is not None:
            _note.forked()


def watch() -> ProcessLoop | None:
    """The watch of this process, once torch has been imported."""
    return _watch


def leave() -> bool:
    """Leave the note of this process, if there is someone to read it. False where this process was never armed."""
    if _note is None:
        return False
    _note.leave()
    return True


def _torch_is_here(_module: Any, settings: RunOptions) -> None:
    global _watch
    try:
        with own_imports():
            from ..hooks.known_trainers import wait_for_trainers
            from ..process_loop import ProcessLoop
        made = ProcessLoop(settings)
        made.start()
    except Exception as error:
        print(f"steady run: training is not guarded ({type(error).__name__}: {error})", file=sys.stderr)
        return
    _watch = made
    wait_for_trainers(made)


def _log_to_stderr() -> None:
    """What we log goes to standard error, also where the program sends its own log to standard output."""
    logger = logging.getLogger("steadygrad")
    logger.addHandler(_ToStderr())
    logger.propagate = False


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to `sys.stderr` as it is at that moment, as Python's own handler of last resort does."""

    def __init__(self) -> None:
        logging.Handler.__init__(self, logging.WARNING)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _Note:
    """What this process tells the supervisor when it ends. A killed process tells nothing, and its journal remains."""

    def __init__(self, settings: RunOptions) -> None:
        self._settings = settings
        self._process = os.getpid()
        self._in_child = False
        self._error: BaseException | None = None

    def forked(self) -> None:
        """This is another process now. One of `multiprocessing` ends without the functions of `atexit`."""
        self._process, self._in_child, self._error = os.getpid(), True, None
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util.register_after_fork(self, lambda note: util.Finalize(None, note.leave, exitpriority=-100))

    def listen(self) -> None:
        """Hear of an exception that ends the program, without changing how it is shown but for our own frames."""
        shown = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            self._crashed(error)
            from .clean_tracebacks import clean

            clean(error)
            shown(kind, error, error.__traceback__ or trace)

        # A program that asks whether the hook is still Python's own, or goes back to that, sees no difference.
        if sys.excepthook is sys.__excepthook__:
            sys.__excepthook__ = hook
        sys.excepthook = hook

    def _crashed(self, error: BaseException) -> None:
        if not isinstance(error, KeyboardInterrupt | SystemExit) and self._error is None:
            self._error = error
            if _watch is not None:
                _watch.crashed(error)

    def leave(self) -> None:
        if os.getpid() != self._process or self._settings.reports is None:
            return
        if self._in_child and (_watch is None or not _watch.step):
            return  # one that did not train: a worker of a data loader
        last = getattr(sys, "last_value", None)
        if isinstance(last, BaseException):
            self._crashed(last)  # the program showed it with its own hook
        note: dict[str, Any] = {
            "torch": "torch" in sys.modules,
            "guarded": _watch is not None,
            "error": type(self._error).__name__ if self._error is not None else None,
        }
        if _watch is not None:
            note |= _watch.finish()
        self._settings.leave_note(**note)
