"""What `steady run` was asked for, on its way through the environment to every process of the program. No torch."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

VARIABLE = "STEADYGRAD_RUN"
BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One run's wishes. `reports` is where each process leaves notes for the supervisor."""

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

    def leave_note(self, **note: Any) -> None:
        """Tell the supervisor of this process. What was told when training had `begun` is replaced at the end."""
        if self.reports is None:
            return
        process = os.getpid()
        begun = Path(self.reports, f"begun-{process}.json")
        path = begun if note.get("begun") else Path(self.reports, f"{time.time():.6f}-{process}.json")
        try:
            path.write_text(json.dumps({"process": process, **note}), encoding="utf-8")
            if path is not begun:
                begun.unlink(missing_ok=True)
        except OSError:
            pass  # the supervisor is gone

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> RunOptions | None:
        """The settings this process was started with, or None if it was not started by `steady run`."""
        text = environment.get(VARIABLE)
        if not text:
            return None
        data = json.loads(text)
        known = {field.name for field in fields(RunOptions)}
        return RunOptions(**{key: value for key, value in data.items() if key in known})
