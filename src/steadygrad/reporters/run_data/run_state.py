"""Whether a run is still being written, has ended, or was killed: asked of its files, without disturbing the writer."""

from __future__ import annotations

import fcntl
import os
import platform
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...journal import Event, run_directory, safe_files
from ...journal.program_end import end_of
from ...journal.steps.ipc_frames import END_OF_STREAM, frames
from ...journal.steps.segment import MAX_SEGMENT_BYTES, segments
from ...journal.steps.step_reader import segment_paths
from ...records import Action, Incident
from ...records.errors import JournalError

Word = Literal["running", "ended", "halted", "interrupted", "crashed"]
LATE_AFTER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """`word` for programs, `sentence` for people; `torn_bytes` were left incomplete by a writer that was killed.

    `why_known`: whether it is known how the program of a run that has ended came to its end; `code_known`: with which
    exit code.
    """

    word: Word
    sentence: str
    torn_bytes: int = 0
    why_known: bool = True
    code_known: bool = True


def state_of(
    run_dir: Path,
    run: dict[str, Any],
    incidents: list[Incident],
    events: Sequence[Event] = (),
    *,
    last_step: int | None,
    last_time: float | None,
) -> RunState:
    """What became of the run so far. Reads the ends of the newest segments; takes no lock."""
    root = run_dir.expanduser().resolve()
    closed, torn = _ends(root)
    if _has_writer(root, run, closed=closed):
        return RunState(word="running", sentence=_waiting(last_step, last_time))
    where = "before its first step" if last_step is None else f"at step {last_step:,}"
    if incidents and incidents[-1].decision is not None and Action.HALT in incidents[-1].decision.actions:
        return RunState(word="halted", sentence=f"halted by its policy {where}", torn_bytes=torn)
    end = end_of(run, events)
    if end.how == "error":
        return RunState(word="crashed", sentence=f"ended {where} {end.sentence}", torn_bytes=torn)
    if end.how == "interrupted":
        return RunState(word="interrupted", sentence=f"interrupted {where}", torn_bytes=torn)
    if closed and end.how == "finished":
        return RunState(word="ended", sentence=f"ended {where}", torn_bytes=torn, code_known=end.code_seen)
    if closed:
        how = f" {end.sentence}" if end.sentence else "; how the program ended is not known"
        return RunState(word="ended", sentence=f"ended {where}{how}", torn_bytes=torn, why_known=False)
    told = f"killed or crashed {where}: no process writes this run and its journal was not closed"
    return RunState(word="crashed", sentence=told, torn_bytes=torn)


def ago(seconds: float) -> str:
    """A stretch of time as a person says it: 12 s, 3 min, 5 h, 2 d."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (unit == "min" and seconds >= size):
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _waiting(last_step: int | None, last_time: float | None) -> str:
    if last_step is None or last_time is None:
        return "running, waiting for its first step"
    quiet = time.time() - last_time
    return "running" if quiet < LATE_AFTER_S else f"running, but no step for {ago(quiet)}"


def _ends(root: Path) -> tuple[bool, int]:
    """Whether the newest segment of every rank was closed, and how many torn bytes they end in."""
    newest: dict[int, Path] = {}
    for path in segment_paths(root):
        ((_, rank, _),) = segments([path.name])
        newest[rank] = path  # they come in the order of their numbers
    closed, torn = bool(newest), 0
    for path in newest.values():
        try:
            data = safe_files.read_file(path, limit=MAX_SEGMENT_BYTES)
        except (OSError, JournalError):
            closed = False
            continue
        whole = max((frame.end for frame in frames(data)), default=0)
        if data[whole:] != END_OF_STREAM:
            closed, torn = False, torn + len(data) - whole
    return closed, torn


def _has_writer(root: Path, run: dict[str, Any], *, closed: bool) -> bool:
    if (os.getpid(), str(root), 0) in run_directory._held:
        # This process writes it. Opening and closing the lock file would let go of the lock that it holds.
        return True
    try:
        held = _locked(safe_files.inside(root, run_directory.own_name(".lock", "", 0)))
    except (OSError, JournalError):
        held = None
    if held is not None:
        return held
    sessions = run.get("sessions")
    last = sessions[-1] if isinstance(sessions, list) and sessions else None
    session = last if isinstance(last, dict) else {}
    process, here = session.get("process"), session.get("machine") == platform.node()
    return here and not closed and isinstance(process, int) and process > 0 and _alive(process)


def _locked(path: Path) -> bool | None:
    """Whether a process holds the writer's lock; None where the system cannot be asked without taking it."""
    if not sys.platform.startswith("linux") or struct.calcsize("P") != 8:
        return None
    question = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    descriptor = safe_files.open_regular(path, os.O_RDONLY)
    try:
        answer: bytes = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
    finally:
        os.close(descriptor)
    return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
