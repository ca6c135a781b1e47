"""Programs that use a trainer, and programs of several ranks, under `steady run`: bit for bit, with real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steadygrad.journal import read_incidents

PROGRAMS = Path(__file__).parent / "programs"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(tmp_path: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], list[Any], dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "steadygrad.commands", "run", "--json", "--run-dir", "run", "--diagnose", "origin",
         *words],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return done, results, json.loads(done.stderr.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("program", ["accelerate", "transformers", "lightning"])
def test_a_poisoned_window_leaves_the_bits_of_the_run_without_it(program: str, tmp_path: Path) -> None:
    """Weights, moments, running statistics, schedule; accumulation 1 and 2."""
    pytest.importorskip(program)
    done, (differing,), told = run(tmp_path, str(PROGRAMS / f"{program}_program.py"))
    assert differing.pop("compared") > 20
    assert differing == {"1": [], "2": []}, done.stderr[-3000:]
    assert told["skipped"] == 2
    assert told["faults"] == []
    incidents = [incident for run_dir in told["run_dirs"] for incident in read_incidents(run_dir)]
    assert [incident.symptom for incident in incidents] == ["nan_loss", "nan_loss"]


@pytest.mark.slow
def test_the_steps_of_a_lightning_module_with_manual_optimization_are_diagnosed(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    _, (finite,), told = run(tmp_path, str(PROGRAMS / "lightning_manual_program.py"))
    assert finite
    assert (told["skipped"], told["faults"]) == (1, [])
    (incident,) = told["incidents"]
    assert incident["diagnosis"]["cause"]["slug"] == "empty_reduction"
    assert incident["diagnosis"]["origin"]["code_line"] == "spread = (self.critic(x).var(dim=0) + 1e-8).sqrt().mean()"


@pytest.mark.slow
@pytest.mark.distributed
def test_torchrun_is_guarded_on_every_rank(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    _, results, told = run(tmp_path, "--", *torchrun, str(PROGRAMS / "ranks_program.py"))
    assert sorted(each["rank"] for each in results) == [0, 1]
    assert all(each["finite"] for each in results)
    assert results[0]["hash"] == results[1]["hash"]
    assert [each["schedule"] for each in results] == [4, 4]
    assert (told["ranks"], told["steps"], told["skipped"], told["faults"]) == (2, 5, 1, [])
    (incident,) = told["incidents"]
    assert incident["diagnosis"]["cause"]["slug"] == "bad_input"  # told by the rank that had the batch


@pytest.mark.slow
@pytest.mark.distributed
def test_accelerate_launch_is_guarded(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    _, (differing,), told = run(tmp_path, "--", *launch, str(PROGRAMS / "accelerate_program.py"))
    assert (differing["1"], differing["2"]) == ([], [])
    assert told["skipped"] == 2
