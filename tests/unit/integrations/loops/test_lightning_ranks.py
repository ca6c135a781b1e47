"""A Lightning trainer with DDP on two ranks: what is bad on one is refused, undone and diagnosed on both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CAUSES = {"input": "bad_input", "loss": "log_zero"}


@pytest.mark.slow
@pytest.mark.distributed
def test_one_ranks_poison_leaves_no_trace_on_any_and_is_diagnosed_for_all_of_a_lightning_trainer(
    tmp_path: Path,
) -> None:
    """A bad input, and a bad loss with accumulation; one launch for both."""
    pytest.importorskip("lightning")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", HERE / "lightning_ranks.py"]
    done = subprocess.run(
        [sys.executable, *command, tmp_path], capture_output=True, text=True, check=False, timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [case["case"] for case in told[0]] == list(CAUSES)
    for one, other in zip(*told, strict=True):
        assert one["shared"] == other["shared"]
        for case in (one, other):
            assert case["differs"] == []
            assert (case["summary"]["skipped"], case["summary"]["guard_faults"]) == (1, {})
        assert one["cause"] == CAUSES[one["case"]]
        for name in ("cause", "line", "rows", "verified", "headline"):
            assert one[name] == other[name], name
        assert "first on rank 1 of 2" in one["headline"]
        assert one["rows"] == [1]
    loss = told[0][1]
    assert "weight.log()" in loss["line"]
    assert loss["verified"]
