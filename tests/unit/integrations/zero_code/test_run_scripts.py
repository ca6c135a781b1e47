"""Ordinary sick training scripts under `steady run`: each survives, and what is said of its first incident is true.

A script says what is wrong with it in its `# truth:` line and marks the line with `# BUG`. `samples=any` says that no
sample is at fault, `samples=row` that a row of the batch is to be named where no loader knows its samples.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steadygrad.journal.incident_files import read_incidents

SCRIPTS = Path(__file__).parent / "scripts"
QUICK = {
    "mlp_own_nll",  # a loss in the loop's own lines
    "gpt_trainer",  # the loss in an attribute
    "cnn_blank_image",  # the batch is prepared in the loop
    "zip_two_loaders",  # two models of one class
    "raw_parameters",  # no model at all
    "writes_a_file",  # cannot be run again
    "rows_cut_in_the_call",  # no loader, and the batch has no name
    "noise_drawn_in_the_call",  # random numbers of the loop's own lines
    "distribution_refuses",  # ends with an error that does not mention the NaN
}
NEEDS = {"accelerate_weights": "accelerate", "hf_own_loop": "transformers"}


def truth_of(script: Path) -> dict[str, str]:
    text = script.read_text()
    found = re.search(r"^# truth: (.*)$", text, re.MULTILINE)
    assert found is not None
    facts = dict(part.split("=", 1) for part in found[1].split())
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "# BUG" in each or "truth" in each)
    bug = [number for number, each in enumerate(text.splitlines(), 1) if each.rstrip().endswith("# BUG")]
    return {**facts, "bug": str(bug[0] if bug else line)}


def scripts() -> list[Any]:
    found = sorted(SCRIPTS.glob("*.py"))
    assert len(found) >= 40
    return [
        pytest.param(script, id=script.stem, marks=() if script.stem in QUICK else (pytest.mark.slow,))
        for script in found
    ]


def run(script: Path, where: Path) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "steadygrad.commands", "run", "--run-dir", str(where / "run"), str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=where, env=environment, timeout=240)
    return ended, read_incidents(where / "run")


def named(diagnosis: Any, batch_key: str | None) -> set[str]:
    """Every way in which the samples were named."""
    ids = ",".join(diagnosis.sample_ids)
    whole = (batch_key or "").removeprefix("samples ").replace(" ", "")
    return {ids or whole, *(["row"] if diagnosis.rows else []), "any"}


@pytest.mark.parametrize("script", scripts())
def test_the_script_survives_and_its_first_incident_is_diagnosed_rightly(script: Path, tmp_path: Path) -> None:
    if script.stem in NEEDS:
        pytest.importorskip(NEEDS[script.stem])
    truth = truth_of(script)
    ended, incidents = run(script, tmp_path)
    ends_itself = truth.get("exit", "0") != "0"
    assert ended.returncode == int(truth.get("exit", "0")), ended.stderr
    assert ends_itself or "weights finite: True" in ended.stdout
    assert ("Traceback" in ended.stderr) is ends_itself
    assert "steadygrad itself failed" not in ended.stdout + ended.stderr
    assert incidents
    diagnosis = incidents[0].diagnosis
    assert diagnosis is not None
    origin = diagnosis.origin
    if truth["op"] != "*":
        assert (origin.op or "") in truth["op"].split("|")
    if truth.get("line") != "any":
        assert origin.source.endswith(f"{script.name}:{truth['bug']}")
    if truth["cause"]:
        assert diagnosis.cause.code in truth["cause"].split("|")
    assert set(truth["samples"].split("|")) & named(diagnosis, incidents[0].batch_key)
    if truth.get("remedy") != "any":
        assert bool(diagnosis.remedies) is (truth.get("remedy") != "none")


def test_a_function_that_counts_and_logs_leaves_no_trace_of_being_run_again(tmp_path: Path) -> None:
    ended, incidents = run(SCRIPTS / "train_step_function.py", tmp_path)
    assert len(incidents[0].diagnosis.remedies) > 0  # it was run many times
    assert "calls 16 14 16" in ended.stdout  # 16 steps; two of them were refused, and the model's own counter restored
    assert ended.stderr.count("loss call") == 16


def test_a_function_that_writes_to_a_file_writes_each_line_once_although_it_is_run_again(tmp_path: Path) -> None:
    ended, incidents = run(SCRIPTS / "writes_a_file.py", tmp_path)
    assert "lines 16" in ended.stdout
    assert not any("would have an effect" in note for note in incidents[0].diagnosis.notes)
