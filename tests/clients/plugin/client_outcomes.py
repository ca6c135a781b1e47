"""A pytest plugin: one JSON line for each phase of each test, written at once, so that a crash loses nothing."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import IO, Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes-to", default=None, help="File that receives one JSON line for each test phase.")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes-to")
    if path is not None:
        config.pluginmanager.register(Outcomes(Path(path)), "client-outcomes")


class Outcomes:
    """Writes what happened to each test. Opened anew for each line: a test may fork or replace file descriptors."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write({"kind": "start", "test": nodeid, "at": time.time()})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(
            {
                "kind": "phase",
                "test": report.nodeid,
                "phase": report.when,
                "outcome": _outcome(report),
                "error": _first_error_line(report),
                "error_text": report.longreprtext[-4000:] if report.failed else None,
                "stdout": report.capstdout if report.when == "teardown" else "",
                "stderr": report.capstderr if report.when == "teardown" else "",
                "seconds": report.duration,
            }
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            error = _first_error_line(report)
            self._write({"kind": "collect", "test": report.nodeid, "error": error, "error_text": report.longreprtext})

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, nodeid: str) -> None:
        text = str(warning_message.message).split("\n", 1)[0][:300]
        self._write({"kind": "warning", "test": nodeid, "category": warning_message.category.__name__, "message": text})

    def pytest_internalerror(self, excrepr: Any) -> None:
        self._write({"kind": "internal", "test": "", "error": str(excrepr).strip().rsplit("\n", 1)[-1]})

    def _write(self, line: dict[str, Any]) -> None:
        file: IO[str]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return report.outcome


def _first_error_line(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """The exception's own first line; pytest keeps it apart from the traceback where it can."""
    if not report.failed:
        return None
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message).split("\n", 1)[0]
    lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
    return (lines[-1] if lines else report.longreprtext.strip().rsplit("\n", 1)[-1]).lstrip("E ").strip()
