"""`steady run` on a plain script of the case: a program of its own, guarded from outside without a changed line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..loop_script import UPDATE_LINE, script_of
from ..truth import Answer, Subject
from .told import answer_of_incident, answer_of_warning

COMMAND = (sys.executable, "-c", "from steadygrad.commands import main; main()", "run", "--json")
"""The command `steady run`, of the steadygrad that this process would import."""
_SPARE = 3.0
"""Seconds before the scorer's own limit at which the program is stopped, so that it is stopped with all it started."""


class TookTooLong(Exception):
    """The program did not end in time."""


def steady_run(subject: Subject) -> Answer:
    """The case written as a script, run under `steady run`, and what that reported at the end."""
    with tempfile.TemporaryDirectory(prefix="zoo-run-") as folder:
        script = Path(folder) / f"train_{subject.path.stem}.py"
        script.write_text(script_of(subject), encoding="utf-8")
        run_dir = Path(folder) / "run"
        _, output, errors = run_program([*COMMAND, "--run-dir", str(run_dir), str(script)], folder, subject.limit)
        told = last_json_line(errors)
        if told is None:
            return Answer(error=f"steady run said nothing that can be read: {errors.strip()[-200:]}")
        return _answer(told, _batches_by_update(output), subject.case.accumulation)


def run_program(command: list[str], folder: str | Path, limit: float) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a program; stopped with all it started at the limit."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=max(limit - _SPARE, 1.0))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise TookTooLong(f"over {limit:g} s") from None
    return process.returncode, output, errors


def last_json_line(text: str) -> dict[str, Any] | None:
    """The last line of a text that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                told: dict[str, Any] = json.loads(line)
                return told
    return None


def _batches_by_update(output: str) -> list[int]:
    """For each call of the optimizer's step, the batch after which the script made it."""
    return [int(found) for found in re.findall(UPDATE_LINE.format(r"(\d+)"), output)]


def _answer(told: dict[str, Any], batches: list[int], accumulation: int) -> Answer:
    """The first incident, else the first warning that the run wrote down; steps are those of the loop's batches."""
    from steadygrad.journal import read_events, read_incidents

    runs = told["run_dirs"]
    incidents = [incident for run in runs for incident in read_incidents(run)]
    if incidents:
        first = min(incidents, key=lambda incident: incident.first_step)
        return answer_of_incident(first, _batch_of(first.first_step, batches, accumulation))
    warned = [
        event.data
        for run in runs
        for event in read_events(run)
        if event.kind == "vitals" and event.data.get("severity") != "note"
    ]
    if warned:
        found = SimpleNamespace(code=warned[0]["code"], detail=warned[0]["detail"])
        return answer_of_warning(found, _batch_of(int(warned[0]["step"]), batches, accumulation))
    return Answer(because="; ".join(told.get("crashes") or told.get("notices") or ()))


def _batch_of(update: int, batches: list[int], accumulation: int) -> int:
    return batches[update] if update < len(batches) else (update + 1) * accumulation - 1
