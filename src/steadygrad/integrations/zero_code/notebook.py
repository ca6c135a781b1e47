"""Notebooks: `%load_ext steadygrad` guards every training loop of the session; `%steady` says what happened.

%load_ext steadygrad
%steady                     # what happened so far, and where it is written down
%steady on --policy observe --run-dir runs/trial --diagnose off
%steady off                 # torch as it was
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from ...detect.tensors.foreign_objects import getattr
from ...records.errors import UsageError
from ...reporters.run_data.counted import counted
from .launch.run_options import RunOptions

if TYPE_CHECKING:
    from .process_loop import ProcessLoop


class Session:
    """What one notebook has switched on."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.watch: ProcessLoop | None = None

    def load(self) -> None:
        """Register the magic, listen for errors, and begin."""
        self._shell.register_magic_function(self.steady, "line", "steady")
        self._shell.events.register("post_run_cell", self._after_cell)
        self._begin(RunOptions(run_dir=_free_run_dir()))
        print(
            "steadygrad guards the training loops of this session. %steady: what happened; %steady off: stop guarding."
        )

    def unload(self) -> None:
        """Everything as it was."""
        self._shell.events.unregister("post_run_cell", self._after_cell)
        self._end()

    def steady(self, line: str) -> None:
        """`%steady [on|off] [--policy P] [--run-dir D] [--diagnose auto|origin|off] [--notify N]`"""
        wish = _parse(line)
        if wish.word == "off":
            self._end()
            print("steadygrad is off: nothing is guarded from now on.")
        elif wish.word == "on":
            self._end()
            place = wish.run_dir or _free_run_dir()
            self._begin(RunOptions(run_dir=place, policy=wish.policy, diagnose=wish.diagnose, notify=wish.notify))
            print(f"steadygrad is on, with the policy {wish.policy}.")
        else:
            self._tell()

    def _begin(self, settings: RunOptions) -> None:
        from .process_loop import ProcessLoop

        self.watch = ProcessLoop(settings)
        self.watch.start()

    def _end(self) -> None:
        if self.watch is not None:
            self.watch.finish()
            self.watch.stop()
            self.watch = None

    def _tell(self) -> None:
        if self.watch is None:
            print("steadygrad is off. Switch it on with: %steady on")
            return
        loops = self.watch.ledger.loops
        counts = [loop.log.ledger for loop in loops]
        steps, skipped = sum(each.steps for each in counts), sum(each.skipped - each.overflows for each in counts)
        if not steps:
            print("No optimizer has stepped yet in this session.")
            return
        print(f"{steps - skipped} of {counted(steps, 'update')} not refused, {skipped} refused.")
        for loop in loops:
            for incident in loop.log.incidents[-5:]:
                cause = incident.diagnosis.cause if incident.diagnosis is not None else None
                where = f" ({cause.code} {cause.slug})" if cause is not None else ""
                print(f"  incident {incident.number}, step {incident.first_step}: {incident.headline}{where}")
        for sentence in self.watch.ledger.notices.values():
            print(f"  note: {sentence}")
        if self.watch.ledger.path is not None:
            print(f"  recorded in {os.path.relpath(self.watch.ledger.path)}")

    def _after_cell(self, result: Any) -> None:
        """A cell ended in an error: was there a NaN that it did not mention?"""
        error = getattr(result, "error_in_exec", None)
        if self.watch is None or error is None:
            return
        before = len(self.watch.ledger.crashes)
        self.watch.crashed(error)
        for sentence in self.watch.ledger.crashes[before:]:
            print(f"steadygrad: {sentence}", file=sys.stderr)


def _parse(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser("%steady", exit_on_error=False, add_help=False)
    parser.add_argument("word", nargs="?", choices=("on", "off", "status"), default="status")
    parser.add_argument("--policy", default="balanced", choices=("observe", "balanced", "ultra_conservative"))
    parser.add_argument("--diagnose", default="auto", choices=("auto", "origin", "off"))
    parser.add_argument("--run-dir")
    parser.add_argument("--notify")
    try:
        return parser.parse_args(shlex.split(line))
    except (argparse.ArgumentError, ValueError, SystemExit) as error:
        raise UsageError(f"%steady does not understand {line!r} ({error}). Try: %steady on --policy observe") from None


def _free_run_dir() -> str:
    return os.path.join("runs", f"notebook-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


_sessions: dict[int, Session] = {}


def load(shell: Any) -> None:
    """What `%load_ext steadygrad` does."""
    if id(shell) not in _sessions:
        _sessions[id(shell)] = Session(shell)
        _sessions[id(shell)].load()


def unload(shell: Any) -> None:
    """What `%unload_ext steadygrad` does."""
    session = _sessions.pop(id(shell), None)
    if session is not None:
        session.unload()
