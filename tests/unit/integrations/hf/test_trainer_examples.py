"""The examples for trainers run, end well, and find the line."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from steadygrad.journal import read_incidents

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"


@pytest.mark.parametrize(
    ("name", "counts", "line"),
    [
        ("hf_trainer", "20 steps, 1 refused", "loss / num_items_in_batch"),
        ("trl_sft", "12 steps, 1 refused", "output / output.norm"),
        ("trl_grpo", "8 steps, 1 refused", "(per_token_loss * mask).sum()"),
    ],
)
def test_the_example_ends_well_and_names_the_line(
    name: str, counts: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](str(tmp_path / "run"))
    assert counts in capsys.readouterr().out
    (incident,) = read_incidents(tmp_path / "run")
    assert incident.capsule is not None
    assert incident.diagnosis is not None
    assert incident.diagnosis.origin is not None
    assert line in (incident.diagnosis.origin.code_line or "")


@pytest.mark.slow
def test_the_capsule_of_a_trainer_is_replayed_by_running_its_script_again(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    script = [sys.executable, EXAMPLES / "hf_trainer.py", tmp_path / "run"]
    subprocess.run(script, capture_output=True, check=True, timeout=240, env=environment, cwd=tmp_path)
    replay = [sys.executable, "-m", "steadygrad.commands", "replay", tmp_path / "run", "--yes", "--json"]
    done = subprocess.run(
        replay, capture_output=True, text=True, check=False, timeout=240, env=environment, cwd=tmp_path
    )  # fmt: skip
    assert done.returncode == 1, done.stderr  # the trouble is there again
    assert "zero_division" in done.stdout
