"""The parent of `steady replay`: starts the user's program once more and reads what the stage made of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ...records import from_plain
from ...records.errors import CapsuleError
from .recorded_program import ENTRY_HINT, RecordedProgram

if TYPE_CHECKING:
    from .replay_capsule import ReplayResult


def rerun(capsule: Path, program: RecordedProgram, *, depth: str = "full") -> ReplayResult:
    """Run the program until its first guarded step, with the capsule put in place there. Waits for it to end.

    What the program prints goes to standard error. Raises CapsuleError if it never gets to a guarded step, or if the
    capsule does not fit it. The program's own guards write nothing.
    """
    from .replay_capsule import ReplayResult

    with tempfile.TemporaryDirectory(prefix="steady-replay-") as folder:
        answer, job = Path(folder) / "answer.json", Path(folder) / "job.json"
        job.write_text(
            json.dumps(
                {
                    "capsule": str(capsule.resolve()),
                    "answer": str(answer),
                    "script": None if program.script is None else str(program.script),
                    "module": program.module,
                    "arguments": list(program.arguments),
                    "depth": depth,
                    "as_it_was": program.is_as_it_was,
                }
            ),
            encoding="utf-8",
        )
        ended = subprocess.run(
            [sys.executable, "-m", "steadygrad.diagnosis.capsule.replay_child", str(job)],
            cwd=program.folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=_standard_error(),
            check=False,
        )
        if not answer.is_file():
            why = f"ended with exit code {ended.returncode}" if ended.returncode >= 0 else "was killed"
            raise CapsuleError(
                f"The program {why} and never came to a guarded step, so nothing was replayed; what it printed is "
                f"above. {ENTRY_HINT}"
            )
        said = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in said:
        raise CapsuleError(said["error"])
    return from_plain(ReplayResult, said["replayed"])


def _environment() -> dict[str, str]:
    """Ours, with this steadygrad to be found wherever the program runs: we may have come from a source tree."""
    home = Path(__file__).resolve().parents[3]
    if home.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(home), *([before] if before else [])])}


def _standard_error() -> int:
    """Where the program's words go: standard output is for our answer alone."""
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError):  # not a real file, as under a test
        return subprocess.DEVNULL
