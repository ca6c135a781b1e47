"""What `steady run` was asked for, on its way through the environment to every process of the program. No torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

VARIABLE = "STEADYGRAD_RUN"
BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One run's wishes. `reports` is where each process leaves a note for the supervisor when it ends."""

    run_dir: str | None = None
    policy: str = "balanced"
    diagnose: str = "auto"
    notify: str | None = None
    reports: str | None = None

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of the program: the settings, and our `sitecustomize` before any other."""
        before = base.get("PYTHONPATH", "")
        path = os.pathsep.join([str(BOOTSTRAP), *([before] if before else [])])
        return {**base, VARIABLE: json.dumps(asdict(self)), "PYTHONPATH": path}

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> RunOptions | None:
        """The settings this process was started with, or None if it was not started by `steady run`."""
        text = environment.get(VARIABLE)
        if not text:
            return None
        data = json.loads(text)
        known = {field.name for field in fields(RunOptions)}
        return RunOptions(**{key: value for key, value in data.items() if key in known})
