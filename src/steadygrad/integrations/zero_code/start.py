"""The first thing in every process of a guarded program: wait for torch, and note how the process ended. No torch.

One hook a library, run when that library has been imported: importing one inside another's hook can make a circle.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wrapt

from .elastic import why_it_may_hang
from .settings import Settings

if TYPE_CHECKING:
    from .watch import Watch

_watch: Watch | None = None


def begin(settings: Settings | None = None) -> None:
    """Arm this process. Called once, by our `sitecustomize` or by a notebook."""
    settings = settings or Settings.from_environment(os.environ)
    if settings is None:
        return
    if (warning := why_it_may_hang(os.environ)) and os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"steady run: {warning}", file=sys.stderr)
    note = _Note(settings)
    wrapt.when_imported("torch")(lambda module: _torch_is_here(module, settings))
    if settings.reports is not None:
        atexit.register(note.leave)
        note.listen()


def watch() -> Watch | None:
    """The watch of this process, once torch has been imported."""
    return _watch


def _torch_is_here(_module: Any, settings: Settings) -> None:
    global _watch
    try:
        from .watch import Watch

        _watch = Watch(settings)
        _watch.start()
    except Exception as error:
        print(f"steady run: training is not guarded ({type(error).__name__}: {error})", file=sys.stderr)
        return
    from .trainers import wait_for_trainers

    wait_for_trainers(_watch)


class _Note:
    """What this process tells the supervisor when it ends. A killed process tells nothing, and its journal remains."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process = os.getpid()
        self._error: str | None = None

    def listen(self) -> None:
        """Hear of an exception that ends the program, without changing how it is shown but for our own frames."""
        shown = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            if not issubclass(kind, KeyboardInterrupt | SystemExit):
                self._error = kind.__name__
                if _watch is not None:
                    _watch.crashed(error)
            from .tracebacks import clean

            clean(error)
            shown(kind, error, error.__traceback__ or trace)

        sys.excepthook = hook

    def leave(self) -> None:
        if os.getpid() != self._process or self._settings.reports is None:
            return  # a forked child
        note: dict[str, Any] = {"process": self._process, "torch": "torch" in sys.modules, "error": self._error}
        if _watch is not None:
            note |= _watch.finish()
        name = f"{time.time():.6f}-{self._process}.json"
        try:
            Path(self._settings.reports, name).write_text(json.dumps(note), encoding="utf-8")
        except OSError:
            pass  # the supervisor is gone, and nobody would read it
