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
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..loop_script import BATCH_LINE, UPDATE_LINE, script_of
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
        return _answer(told, _Timeline.of(output))


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


@dataclass(frozen=True, slots=True)
class _Timeline:
    """When the script began with each batch, and after which batches it made its updates."""

    began: list[float]
    updates: list[int]

    @classmethod
    def of(cls, output: str) -> _Timeline:
        began = re.findall(BATCH_LINE.format(r"\d+", r"([0-9.]+)"), output)
        updates = re.findall(UPDATE_LINE.format(r"(\d+)"), output)
        return cls([float(time) for time in began], [int(batch) for batch in updates])

    def batch_of(self, update: int, time: float) -> int:
        """The batch that a report is about: the one at work when it was written, or an earlier one if its number says
        so. The number alone does not do: updates of other trainings in the process count too, and a batch that the
        loop skips has none. Of a trainer, which prints no batches, the number is all there is."""
        at_work = sum(began <= time for began in self.began) - 1
        named = self.updates[update] if update < len(self.updates) else update
        return min(named, at_work) if at_work >= 0 else named


def _answer(told: dict[str, Any], timeline: _Timeline) -> Answer:
    """The first incident, else the first warning that the run wrote down; steps are those of the loop's batches."""
    from steadygrad.journal import read_events, read_incidents

    runs = told["run_dirs"]
    incidents = [incident for run in runs for incident in read_incidents(run)]
    if incidents:
        first = min(incidents, key=lambda incident: incident.first_step)
        return answer_of_incident(first, timeline.batch_of(first.first_step, first.time))
    warned = [
        event
        for run in runs
        for event in read_events(run)
        if event.kind == "vitals" and event.data.get("severity") != "note"
    ]
    if warned:
        data = warned[0].data
        found = SimpleNamespace(code=data["code"], detail=data["detail"])
        return answer_of_warning(found, timeline.batch_of(int(data["step"]), warned[0].time))
    return Answer(because="; ".join(told.get("crashes") or told.get("notices") or ()))
