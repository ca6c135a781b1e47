"""Starts a program under guard and waits for its end. No torch.

The program is a child that has our standard streams, our terminal and our process group. Signals sent to us alone are
passed on (`signals.py`); how it ended is how we end, signals included, so that shells and schedulers see no difference.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....journal.program_end import tell_exit
from ....records.errors import UsageError
from .run_options import RunOptions
from .signals import SignalRelay
from .torchrun_restarts import fresh_store

_PR_SET_PDEATHSIG = 1
_NODES = ("--nnodes", "--node-rank", "--node_rank", "--num_machines", "--machine_rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended and what its processes said. `code` is negative for a signal."""

    code: int
    run_dir: Path
    notes: list[dict[str, Any]] = field(default_factory=list)
    started: float = 0.0
    command: tuple[str, ...] = ()


def command_line(words: Sequence[str], *, module: bool = False) -> list[str]:
    """What to execute: a Python script or module with this interpreter, anything else as it is."""
    if not words:
        raise UsageError(
            "There is nothing to run. Give a script (steady run train.py), a module (steady run -m package.train) or "
            "a command (steady run -- torchrun --nproc-per-node 2 train.py)."
        )
    first, *rest = words
    if module:
        return [sys.executable, "-m", first, *rest]
    path = Path(first)
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UsageError(f"{first} is a directory without a __main__.py: name the script to run.")
    if path.is_dir() or (path.is_file() and (path.suffix in (".py", ".pyz", ".pyc") or not os.access(path, os.X_OK))):
        return [sys.executable, first, *rest]
    if path.suffix == ".py":
        raise UsageError(f"There is no script {first}: check the name and the current directory, {os.getcwd()}.")
    found = shutil.which(first)
    if found is None:
        raise UsageError(f"There is neither a script nor a command {first}: check the name.")
    return [found, *rest]


def default_run_dir(words: Sequence[str]) -> Path:
    """runs/<script>-<time>, beside the runs that are there."""
    named = next((Path(word).stem for word in words if word.endswith(".py")), Path(words[0]).name if words else "run")
    stem = "".join(c if c.isalnum() or c in "-_" else "-" for c in named)[:60].strip("-") or "run"
    base = Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    return _free(base, Path.exists)


def own_run_dir(wished: Path, command: Sequence[str]) -> Path:
    """The run directory that was asked for, or where it holds a run already, the next one with a number: a program
    counts its steps from zero, and two runs in one directory could not be told apart.

    Programs on several nodes share what they were given: each of them would find another number.
    """
    several = any(word.partition("=")[0] in _NODES for word in command)
    if several or os.environ.get("SLURM_NNODES", "1") != "1":
        return wished
    return _free(wished, lambda path: (path / "run.json").exists())


def _free(base: Path, taken: Callable[[Path], bool]) -> Path:
    path, count = base, 1
    while taken(path):
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path


def supervise(command: Sequence[str], settings: RunOptions) -> Ended:
    """Run the program to its end. Its exit code, streams, arguments and signals are its own."""
    assert settings.run_dir is not None
    with tempfile.TemporaryDirectory(prefix="steady-run-") as reports:
        started = time.time()
        wishes = RunOptions(
            run_dir=str(Path(settings.run_dir).resolve()), policy=settings.policy, diagnose=settings.diagnose,
            notify=settings.notify, reports=reports,
        )  # fmt: skip
        more = {"STEADYGRAD_REPORTS": reports, **fresh_store(command, os.environ)}
        code = _run(command, wishes.environment(os.environ) | more)
        notes = [_read(path) for path in sorted(Path(reports).iterdir())]
        for run in {str(wishes.run_dir), *(str(note["run_dir"]) for note in notes if note.get("run_dir"))}:
            tell_exit(run, code=code, since=started)
        return Ended(
            code=code, run_dir=Path(settings.run_dir), notes=[note for note in notes if note], started=started,
            command=tuple(command),
        )  # fmt: skip


def end_like(code: int) -> int:
    """Our own exit code for the program's; does not come back where a signal ended it."""
    if code >= 0:
        return code
    # The default action of the same signal, so that a shell says "Killed" or "Interrupt" as it would have; no core of
    # ours beside the program's.
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass
    sys.stdout.flush()
    sys.stderr.flush()
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    with SignalRelay() as relay:
        try:
            child = subprocess.Popen(command, env=environment, preexec_fn=_die_with_parent())
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be started: {error.strerror or error}.") from error
        return relay.wait(child)


def _die_with_parent() -> Any:
    """On Linux, a program whose supervisor is killed is asked to end: it would run on unnoticed."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _read(path: Path) -> dict[str, Any]:
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}
