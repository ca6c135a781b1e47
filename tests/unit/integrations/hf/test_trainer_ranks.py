"""A Trainer on two ranks: one rank's bad batch is refused on both, and leaves no trace on either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.distributed
@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_one_ranks_poison_leaves_no_trace_on_any_rank(tmp_path: Path, accumulation: int) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *command, HERE / "two_ranks.py", tmp_path, str(accumulation)], capture_output=True, text=True,
        check=False, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first["weights"] == second["weights"]
    for told in (first, second):
        assert told["wrapped"] == "DistributedDataParallel"
        assert told["summary"]["skipped"] == 1
        assert told["summary"]["guard_faults"] == {}
        assert told["summary"]["only_watching"] is None
        assert told["differences"] == []
        assert told["cause"] == ["zero_division"]
        assert "first on rank 0 of 2" in told["headline"][0]
    # What one rank saw is in the log that rank 0 keeps.
    assert first["nan"] == [False, False, True, False, False]
    assert first["refused"] == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert (tmp_path / "guarded" / "checkpoint-4" / "steady.json").is_file()
