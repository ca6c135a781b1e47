"""`steady run -- torchrun`: a step that is bad on one rank is refused on all, and the guilty rank finds out why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steadygrad.journal import read_incidents
from steadygrad.journal.incident_files import read_incident
from steadygrad.records import Incident

PROGRAM = Path(__file__).parent / "programs" / "rank_losses_program.py"
FAULTS = ("log", "root", "gather", "weights")
pytestmark = pytest.mark.distributed


def run_program(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What each rank printed for each fault, and what the screen at the end says."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [sys.executable, "-m", "steadygrad.commands", "run", "--json", "--run-dir", "run", "--", *torchrun, PROGRAM],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
        timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return results, json.loads(done.stderr.splitlines()[-1])


def by_rank(run: Path, number: int) -> tuple[Incident, Incident]:
    """One incident as rank 0 and as rank 1 keep it."""
    return read_incidents(run)[number], read_incident(run / "incidents" / f"{number + 1:04d}" / "incident-rank1.json")


def test_a_step_bad_on_one_rank_leaves_no_trace_on_any_and_is_diagnosed_where_it_began(tmp_path: Path) -> None:
    """One launch for all of it: most of the time goes into starting processes."""
    results, told = run_program(tmp_path)
    leaves_no_trace(results)
    assert (told["ranks"], told["skipped"], told["rolled_back"], told["faults"]) == (2, 4, 1, [])
    the_guilty_ranks_lines_were_run_again(tmp_path / "run")
    lines_that_talk_to_other_ranks_were_not(tmp_path / "run")
    all_ranks_went_back_together(tmp_path / "run")


def leaves_no_trace(results: list[dict[str, Any]]) -> None:
    assert sorted((each["fault"], each["rank"]) for each in results) == sorted((f, r) for f in FAULTS for r in (0, 1))
    for each in results:
        assert each["compared"] > 20
        assert each["differing"] == []
    for fault in FAULTS:
        assert len({each["hash"] for each in results if each["fault"] == fault}) == 1


def the_guilty_ranks_lines_were_run_again(run: Path) -> None:
    for number, cause, line in ((0, "log_zero", "weight.log()"), (1, "sqrt_grad_at_zero", "(out * 0 + weight).sqrt()")):
        first, second = by_rank(run, number)
        for incident in (first, second):
            diagnosis = incident.diagnosis
            assert diagnosis is not None
            assert diagnosis.cause is not None
            assert diagnosis.origin is not None
            assert diagnosis.cause.slug == cause
            assert line in (diagnosis.origin.code_line or "")
            assert diagnosis.sample_ids == ("9",)
            assert any(trial.verified for trial in diagnosis.trials)
            assert incident.batch_key == "samples 8, 9, 10, 11"
        assert first.diagnosis is not None
        assert first.diagnosis.notes[-1] == "found on rank 1"
    assert "the loss is nan; first on rank 1 of 2 (losses by rank: " in by_rank(run, 0)[0].headline


def lines_that_talk_to_other_ranks_were_not(run: Path) -> None:
    for incident in by_rank(run, 2):
        assert "first on rank 1 of 2" in incident.headline
        assert incident.diagnosis is not None
        assert incident.diagnosis.notes[0] == "the loop's own lines were not run again: they talk to the other ranks"


def all_ranks_went_back_together(run: Path) -> None:
    for incident in by_rank(run, 3):
        assert incident.symptom == "nan_param"
        assert incident.decision is not None
        assert "was restored; the update since is lost: one rank cannot make that again" in incident.decision.reason
