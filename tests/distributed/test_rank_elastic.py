"""torchrun replaces a killed rank, and the run goes on as if it had never been killed. Runs the example as it is."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rank_launch import RunRanks

from steadygrad.journal import read_incidents

pytestmark = pytest.mark.distributed
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ddp.py"


@pytest.mark.timeout(600)
def test_torchrun_restarts_a_killed_rank_and_the_run_ends_with_the_same_weights(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    whole = [ended.returned for ended in run_ranks("ddp_example", 2)]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--local-addr", "localhost", "--redirects", "3",
        "--log-dir", str(tmp_path / "logs"), str(EXAMPLE), str(tmp_path / "run"), "--kill-rank", "1",
    ]  # fmt: skip
    # With the second, torchrun makes a new store for the second attempt: in the old one a rank could read the address
    # of a process that is gone.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, said = process.communicate(timeout=280)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    logs = "\n".join(f"== {p}\n{p.read_text(errors='replace')}" for p in sorted((tmp_path / "logs").rglob("*.log")))
    assert process.returncode == 0, f"{said}\n{logs}"
    told = [
        ast.literal_eval(line.partition(": ")[2])
        for path in (tmp_path / "logs").rglob("stdout.log")
        for line in path.read_text().splitlines()
        if line.startswith("rank ")
    ]
    assert sorted(each["rank"] for each in told) == [0, 1]
    for each in told:
        assert each["began_at"] == 40
        assert (each["steps"], each["applied"], each["skipped"]) == (60, 59, 1)
        assert each["weights"] == whole[0]["weights"] == whole[1]["weights"]
    assert [each["began_at"] for each in whole] == [0, 0]
    [incident] = read_incidents(tmp_path / "run")
    assert "first on rank 1 of 2" in incident.headline
    assert incident.diagnosis is not None
    assert incident.diagnosis.cause is not None
    assert incident.diagnosis.cause.slug == "bad_input"
    assert incident.diagnosis.rows == (3,)
