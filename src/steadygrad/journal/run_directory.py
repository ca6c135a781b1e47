"""A run on disk: where everything is, who is writing, and `run.json`, which says what ran.

    run.json               what ran: command, versions, configuration, sessions
    state.json             what the guard needs to go on after a restart
    steps/                 one row a step, Arrow IPC streams (see step_writer.py)
    incidents/NNNN/        incident.json, and of the first of each kind a capsule
    snapshots/             last good states
    events.jsonl           decisions, faults, degraded periods, one line each
    quarantine.jsonl       batches that were refused

Ranks other than 0 have their own files, marked `-rank1`; they share only `run.json`, which the first to come makes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import re
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import __version__
from ..records import to_plain
from ..records.errors import JournalError
from . import safe_files

RUN_FORMAT = "steadygrad-run"
RUN_VERSION = 1
MAX_SESSIONS = 1000
_INCIDENT_NAME = re.compile(r"[0-9]{4,9}")
_SECRET_OPTION = re.compile(r"(?i)(token|secret|passw|api[-_]?key|credential)")

_held: set[tuple[int, str, int]] = set()  # (process, directory, rank); a POSIX lock does not stop its own process


class RunDirectory:
    """A run directory opened for writing by one rank of one process. Made if it is not there, continued if it is."""

    def __init__(
        self, path: str | os.PathLike[str], *, rank: int = 0, run_config: Mapping[str, Any] | None = None
    ) -> None:
        self.rank = rank
        self._lock: int | None = None
        self.of_another = False
        """Whether the directory already held the run of another program."""
        try:
            self.path = Path(path).expanduser().resolve()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            safe_files.make_directory(self.path)
            self._take_lock()
            for name in ("steps", "incidents", "snapshots"):
                safe_files.make_directory(safe_files.inside(self.path, name))
            self.steps, self.incidents, self.snapshots = (self.path / n for n in ("steps", "incidents", "snapshots"))
            self._remove_debris()
            self.run_id, self.continued = self._write_run(run_config or {})
        except JournalError:
            self.close()
            raise
        except (OSError, RuntimeError) as error:
            self.close()
            raise JournalError(
                f"Run directory {path} cannot be written: {safe_files.why(error)}. "
                "Nothing would be remembered of this run; pass a run_dir you may write to, or run_dir=None."
            ) from error

    @staticmethod
    @contextlib.contextmanager
    def unwritten(root: Path, *, rank: int) -> Iterator[Path]:
        """The events of a run that is over, for one line more. Raises JournalError while a process writes the run."""
        if (os.getpid(), str(root), rank) in _held:
            raise JournalError(f"Run directory {root} is being written by this process.")
        lock = safe_files.open_regular(safe_files.inside(root, own_name(".lock", "", rank)), os.O_RDWR)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield safe_files.inside(root, own_name("events", ".jsonl", rank))
        finally:
            os.close(lock)

    def own(self, stem: str, suffix: str) -> Path:
        """The path of this rank's file, for example events.jsonl or events-rank1.jsonl."""
        return safe_files.inside(self.path, own_name(stem, suffix, self.rank))

    def incident_directory(self, number: int) -> Path:
        """incidents/NNNN, made if it is not there."""
        return safe_files.make_directory(safe_files.inside(self.incidents, incident_name(number)))

    def last_incident(self) -> int:
        """The highest incident number in use, 0 in a fresh run."""
        return max(incident_numbers(self.path), default=0)

    def close(self) -> None:
        """Lets another process continue this run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            _held.discard((os.getpid(), str(self.path), self.rank))

    def _take_lock(self) -> None:
        # A POSIX lock and not flock: a data loader's workers inherit an flock and would keep it after their parent was
        # killed, so the run could not be resumed until they are gone.
        key = (os.getpid(), str(self.path), self.rank)
        sentence = (
            f"Run directory {self.path} is already being written by {{who}}: two writers would mix two runs. "
            "Pass another run_dir, or close the other guard first."
        )
        if key in _held:
            raise JournalError(sentence.format(who="this process"))
        path = safe_files.inside(self.path, own_name(".lock", "", self.rank))
        lock = safe_files.open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                holder = os.read(lock, 32).decode("ascii", "replace").strip()
                os.close(lock)
                raise JournalError(sentence.format(who=f"process {holder or 'unknown'}")) from None
            # a file system without locks: go on without
        os.ftruncate(lock, 0)
        with contextlib.suppress(OSError):  # only for the message above; a full disk is found out by run.json
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock
        _held.add(key)

    def _remove_debris(self) -> None:
        # Temporary files of a killed writer. Only rank 0 sweeps and only names of our own making, an hour old: another
        # rank may be writing its own at this moment.
        if self.rank != 0:
            return
        for directory in (
            self.path,
            self.steps,
            *(self.incidents / incident_name(n) for n in incident_numbers(self.path)),
        ):
            for entry in os.scandir(directory):
                with contextlib.suppress(OSError):
                    ours = entry.name.startswith(safe_files.TEMPORARY_PREFIX) and entry.is_file(follow_symlinks=False)
                    if ours and time.time() - entry.stat(follow_symlinks=False).st_mtime > 3600:
                        os.unlink(entry.path)

    def _write_run(self, run_config: Mapping[str, Any]) -> tuple[str, bool]:
        path = safe_files.inside(self.path, "run.json")
        now = time.time()
        fresh = {
            "format": RUN_FORMAT,
            "version": RUN_VERSION,
            "run": f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(3)}",
            "created": now,
            "command": redacted(sys.argv),
            "versions": versions(),
            "configuration": to_plain(run_config),
            "sessions": [],
        }
        made = not path.exists() and safe_files.create_file(path, safe_files.json_bytes(fresh))
        run = fresh if made else read_run(self.path)
        if self.rank == 0:
            sessions = run.get("sessions")
            sessions = sessions if isinstance(sessions, list) else []
            last = sessions[-1] if sessions and isinstance(sessions[-1], dict) else {}
            self.of_another = bool(last) and last.get("process") != os.getpid()
            session = {"started": now, "process": os.getpid(), "machine": platform.node()}
            run["sessions"] = [*sessions, session][-MAX_SESSIONS:]
            for key in ("command", "versions", "configuration"):
                run[key] = fresh[key]
            safe_files.replace_file(path, safe_files.json_bytes(run))
        return str(run["run"]), not made


def own_name(stem: str, suffix: str, rank: int) -> str:
    """events.jsonl for rank 0, events-rank1.jsonl for rank 1."""
    return f"{stem}{suffix}" if rank == 0 else f"{stem}-rank{rank}{suffix}"


def rank_files(run_dir: str | os.PathLike[str], stem: str, suffix: str) -> list[Path]:
    """The files of that kind of all ranks, rank 0 first."""
    root = open_run(run_dir)
    pattern = re.compile(re.escape(stem) + r"(?:-rank([0-9]{1,6}))?" + re.escape(suffix))
    found = [(int(match[1] or 0), name) for name in listing(root) if (match := pattern.fullmatch(name))]
    return [safe_files.inside(root, name) for _, name in sorted(found)]


def incident_name(number: int) -> str:
    return f"{int(number):04d}"


def incident_numbers(root: Path) -> list[int]:
    """The numbers of the incidents of a run, in order."""
    directory = safe_files.inside(root, "incidents")
    if not directory.is_dir():
        return []
    return sorted(int(name) for name in listing(directory) if _INCIDENT_NAME.fullmatch(name))


def listing(directory: Path) -> list[str]:
    """The names in a directory of a run, or one sentence on why it cannot be looked into."""
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        raise JournalError(f"{directory} cannot be read: {safe_files.why(error)}.") from error


def read_run(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """What `run.json` says, or one sentence on why this is no run that can be read."""
    root = Path(run_dir).expanduser()
    try:
        root = root.resolve()
        if not root.exists():
            raise JournalError(f"{run_dir} does not exist: pass the run_dir a guard wrote to.")
        if not root.is_dir():
            raise JournalError(f"{run_dir} is a file, not a run directory: pass the run_dir a guard wrote to.")
        path = safe_files.inside(root, "run.json")
        if not path.exists():
            raise JournalError(f"{run_dir} is not a run directory: it holds no run.json.")
    except (OSError, RuntimeError) as error:
        if isinstance(error, JournalError):
            raise
        raise JournalError(f"{run_dir} cannot be read: {safe_files.why(error)}.") from error
    run = safe_files.read_json(path)
    version = run.get("version")
    if run.get("format") != RUN_FORMAT or not isinstance(version, int) or not isinstance(run.get("run"), str):
        raise JournalError(f"{path} was not written by steadygrad: this is not a run directory.")
    if version > RUN_VERSION:
        raise JournalError(
            f"{run_dir} has format version {version} and this steadygrad reads up to {RUN_VERSION}: upgrade steadygrad."
        )
    return run


def open_run(run_dir: str | os.PathLike[str]) -> Path:
    """The resolved root of a run that can be read."""
    read_run(run_dir)
    return Path(run_dir).expanduser().resolve()


def versions() -> dict[str, str]:
    """What this runs on, asked of the installed packages' metadata: importing torch to learn its version is slow."""
    here = platform.uname()  # `platform.platform()` would start a process to ask for the processor
    system = f"{here.system}-{here.release}-{here.machine}"
    found = {"python": platform.python_version(), "platform": system, "steadygrad": __version__}
    for package in ("torch", "numpy", "pyarrow"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def redacted(arguments: list[str]) -> list[str]:
    """A command line without the values of options whose names speak of secrets."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            shown.append("***")
            hide_next = False
            continue
        secret = bool(argument.startswith("-") or equals) and _SECRET_OPTION.search(name) is not None
        hide_next = secret and not equals
        shown.append(f"{name}=***" if secret and equals else argument)
    return shown
