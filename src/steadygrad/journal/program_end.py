"""How the training of a run ended, and the program around it, as far as someone was there to see it.

`program_ended` is written by the process that trained: its guard was closed, an exception went through it, or Python
exited. `program_exited` is written later, by whoever saw the end of the program: `steady run`, or the process itself
where its guard had gone before. A run that was killed alone has neither.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..records.errors import JournalError, TrainingHalted
from .checksummed_lines import LineFile
from .events import Event, encode_event
from .run_directory import RunDirectory, read_run

ENDED, EXITED = "program_ended", "program_exited"
MAX_MESSAGE = 300
How = Literal["finished", "error", "interrupted", "not known"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """`by` names what ended it, for example "RuntimeError: shapes do not fit" or "exit code 3"; else it is empty.

    `code_seen`: without it no exception ended the program, and its exit code is not known.
    `handled`: an exception ended the training, and the program went on and exited normally.
    """

    how: How
    by: str = ""
    handled: bool = False
    code_seen: bool = True

    @property
    def sentence(self) -> str:
        """How it goes on after "ended at step 3": by RuntimeError: shapes do not fit. Empty where there is no more."""
        if not self.by:
            return ""
        words = f"{'with' if self.by.startswith(_EXIT_CODE) else 'by'} {self.by}"
        return f"{words}; the program went on and exited normally" if self.handled else words


def told_of(error: BaseException | None) -> dict[str, Any]:
    """What is written down of the exception that went through a guard, or of none."""
    if error is None or isinstance(error, GeneratorExit):
        return {"how": "finished"}
    if isinstance(error, SystemExit):
        return _told_of_exit(error.code)
    if isinstance(error, KeyboardInterrupt):
        return {"how": "interrupted"}
    if isinstance(error, TrainingHalted):
        return {"how": "halted"}
    return {"how": "error", "error": type(error).__name__, "message": first_line(error)}


def first_line(error: BaseException) -> str:
    """The first line of what an exception says; empty where it says nothing."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # an exception of the program's own
        return ""
    return lines[0][:MAX_MESSAGE] if lines else ""


def exiting_with() -> dict[str, Any]:
    """What is known while Python exits: the exception that ends the program, if one does. Empty in a notebook."""
    if _interactive():
        return {}
    error = getattr(sys, "last_value", None)
    return told_of(error) if isinstance(error, BaseException) else {"how": "exit"}


def closed_with() -> dict[str, Any]:
    """What is known where a guard is closed and no exception goes through it: one may be ending the program."""
    told = exiting_with()
    return told if told.get("how") not in (None, "exit") else told_of(None)


def under_way() -> BaseException | None:
    """The exception that is being handled or is on its way through the code that asks."""
    return sys.exc_info()[1]


def tell_at_exit(path: Path, rank: int) -> None:
    """The guard of this run is gone before its program: how that ends is written down when it does."""
    _waiting[str(path), rank] = os.getpid()


def begins_anew(path: Path, rank: int) -> None:
    """Another guard goes on with this run: it will say how that ends."""
    _waiting.pop((str(path), rank), None)


def exiting() -> bool:
    """Whether Python has come so far in its exit that nothing more can be left for later."""
    return _exiting


def tell_exit(run_dir: str | os.PathLike[str], *, code: int, since: float) -> None:
    """What `steady run` saw: the exit code, negative for a signal. Only for runs that were written since then."""
    with contextlib.suppress(JournalError, OSError):
        run = read_run(run_dir)
        if session_began(run) >= since:
            _append(Path(run_dir).expanduser().resolve(), 0, {"code": code})


def session_began(run: Mapping[str, Any]) -> float:
    """When the newest of the programs that wrote this run began; 0 where that was not written down."""
    sessions = run.get("sessions")
    last = sessions[-1] if isinstance(sessions, list) and sessions else None
    began = last.get("started") if isinstance(last, dict) else None
    return float(began) if isinstance(began, int | float) else 0.0


def end_of(run: Mapping[str, Any], events: Sequence[Event]) -> ProgramEnd:
    """How the newest program that wrote this run ended."""
    since = session_began(run)
    recent = [event for event in events if event.time >= since and isinstance(event.data, dict)]
    first: dict[int, Mapping[str, Any]] = {}
    for event in recent:
        if event.kind == ENDED:
            first.setdefault(event.rank, event.data)
    exits = [event.data for event in recent if event.kind == EXITED]
    return end_from(list(first.values()), exits[-1] if exits else {})


def end_from(ended: Sequence[Mapping[str, Any]], exited: Mapping[str, Any]) -> ProgramEnd:
    """The same from what the processes that trained said, and from what was seen of the exit."""
    ends = sorted(ended, key=lambda end: _ORDER.get(str(end.get("how")), 3))
    worst = _in_words(ends[0]) if ends else ProgramEnd(how="not known")
    last = _exit_in_words(exited)
    left_by_exit = worst.by.startswith(_EXIT_CODE) and not last.code_seen
    if worst.how == "error" and last.how == "finished" and not left_by_exit:
        return ProgramEnd(how="not known", by=worst.by, handled=True)
    if worst.how in ("finished", "not known") and last.how != "not known":
        return last
    return worst


_EXIT_CODE = "exit code"
_ORDER = {"error": 0, "interrupted": 1, "exit": 2}
_waiting: dict[tuple[str, int], int] = {}
_exiting = False


def _told_of_exit(code: object) -> dict[str, Any]:
    if code in (None, 0):
        return {"how": "finished"}
    return {"how": "exit", "code": code if isinstance(code, int) else 1}


def _in_words(end: Mapping[str, Any]) -> ProgramEnd:
    how = end.get("how")
    if how == "error":
        message = str(end.get("message") or "")
        return ProgramEnd(how="error", by=str(end.get("error")) + (f": {message}" if message else ""))
    if how == "interrupted":
        return ProgramEnd(how="interrupted")
    if how == "exit" and end.get("code"):
        return ProgramEnd(how="error", by=f"{_EXIT_CODE} {end['code']}")
    if how == "exit":
        return ProgramEnd(how="finished", code_seen=False)
    return ProgramEnd(how="finished" if how in ("finished", "halted") else "not known")


def _exit_in_words(end: Mapping[str, Any]) -> ProgramEnd:
    code = end.get("code")
    if not isinstance(code, int):
        return _in_words(end)
    if code == 0:
        return ProgramEnd(how="finished")
    if code > 0:
        return ProgramEnd(how="error", by=f"{_EXIT_CODE} {code}")
    if code == -signal.SIGINT:
        return ProgramEnd(how="interrupted")
    return ProgramEnd(how="error", by=f"the signal {_signal_name(-code)}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _interactive() -> bool:
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return shell is not None and shell() is not None


def _tell_exits() -> None:
    global _exiting
    _exiting = True
    told = exiting_with()
    for (path, rank), process in _waiting.items():
        if told and process == os.getpid():
            with contextlib.suppress(JournalError, OSError):
                _append(Path(path), rank, told)


def _append(root: Path, rank: int, told: Mapping[str, Any]) -> None:
    """One line more in the events of a run that no process writes; where one does, it is the run of another program."""
    with RunDirectory.unwritten(root, rank=rank) as path:
        file = LineFile(path)
        try:
            file.append(encode_event(EXITED, told, rank=rank))
        finally:
            file.close()


# Before or after the finalizers of the journals, which is not for us to choose: `exiting` tells them which it was.
atexit.register(_tell_exits)
