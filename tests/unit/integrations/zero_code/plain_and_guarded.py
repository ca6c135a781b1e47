"""Run a program alone and under `steady run` in two folders that are alike, and give back both ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# -P, as for the installed script `steady`: the folder it is called in is not on its own search path.
STEADY = [sys.executable, "-P", "-m", "steadygrad.commands"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Both:
    """The two ends of a program, and what `steady run --json` said of the guarded one."""

    alone: subprocess.CompletedProcess[str]
    guarded: subprocess.CompletedProcess[str]

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.guarded.stderr.splitlines()[-1])
        return found

    def told(self) -> tuple[Any, Any]:
        """What the program printed as JSON on its last line, alone and guarded."""
        assert self.alone.returncode == 0, self.alone.stderr
        assert self.guarded.returncode == 0, self.guarded.stderr
        return json.loads(self.alone.stdout.splitlines()[-1]), json.loads(self.guarded.stdout.splitlines()[-1])


def both(
    program: str,
    where: Path,
    *,
    words: Sequence[str] = (),
    files: dict[str, str] | None = None,
    diagnose: str = "off",
    **options: Any,
) -> Both:
    """The program, with other files beside it, alone and guarded."""
    (where / "train.py").write_text(program)
    for name, text in (files or {}).items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_text(text)
    settings = {"cwd": where, "env": ENVIRONMENT, "capture_output": True, "text": True, "check": False, "timeout": 240}
    command = [sys.executable, *words, "train.py"]
    alone = subprocess.run(command, **{**settings, **options})
    steady = [*STEADY, "run", "--diagnose", diagnose, "--json", "--run-dir", "run", "--", *command]
    return Both(alone, subprocess.run(steady, **{**settings, **options}))
