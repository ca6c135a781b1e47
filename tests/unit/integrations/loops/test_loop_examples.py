"""The examples for Accelerate and Lightning, run as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steadygrad.journal import read_incidents

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"


@pytest.mark.parametrize(
    ("name", "package", "cause"),
    [("accelerate_loop", "accelerate", "bad_input"), ("lightning_module", "lightning", "zero_division")],
)
def test_the_example_ends_well_and_names_the_cause(name: str, package: str, cause: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", tmp_path / "run"], capture_output=True, text=True, check=False,
        timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "20 steps, 1 refused" in done.stdout
    assert cause in done.stdout
    (incident,) = read_incidents(tmp_path / "run")
    assert incident.diagnosis is not None
    assert incident.diagnosis.cause is not None
    assert incident.diagnosis.cause.slug == cause
