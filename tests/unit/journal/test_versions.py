"""What a run directory says of the machine."""

from __future__ import annotations

import platform
import subprocess
from typing import Any

import pytest

from steadygrad.journal.run_directory import versions


def test_asking_what_this_runs_on_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(platform, "_uname_cache", None)
    monkeypatch.setattr(platform, "_platform_cache", {})
    monkeypatch.setattr(subprocess, "check_output", start)
    assert platform.machine() in versions()["platform"]
