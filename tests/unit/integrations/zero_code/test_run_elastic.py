"""`steady run -- torchrun --max-restarts N`: restarted ranks meet in a store of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steadygrad.integrations.zero_code.launch.torchrun_restarts import VARIABLE, fresh_store, why_it_may_hang

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "ddp.py"
FRESH = {VARIABLE: "1"}


@pytest.mark.parametrize(
    "command",
    [
        ["/usr/bin/torchrun", "--standalone", "--max-restarts", "3", "train.py"],
        ["torchrun", "--nnodes=1", "--max-restarts=1", "train.py"],
        ["python", "-m", "torch.distributed.run", "--nnodes", "1:1", "--max_restarts", "1", "train.py"],
    ],
)
def test_a_torchrun_on_one_node_that_restarts_gets_a_new_store_for_each_attempt(command: list[str]) -> None:
    assert fresh_store(command, {}) == FRESH


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--standalone", "train.py"],
        ["torchrun", "--max-restarts", "0", "train.py"],
        ["torchrun", "--nnodes", "2", "--max-restarts", "3", "train.py"],
        ["torchrun", "--nnodes", "1:4", "--max-restarts", "3", "train.py"],
        ["python", "train.py", "--max-restarts", "3"],
        ["python", "train.py", "torchrun", "--max-restarts", "3"],
    ],
)
def test_what_needs_none_or_could_be_harmed_is_left_alone(command: list[str]) -> None:
    assert fresh_store(command, {}) == {}


def test_torchruns_own_variables_count_and_what_the_user_has_set_stays() -> None:
    assert fresh_store(["torchrun", "train.py"], {"PET_MAX_RESTARTS": "2"}) == FRESH
    assert fresh_store(["torchrun", "train.py"], {"PET_MAX_RESTARTS": "2", "PET_NNODES": "4"}) == {}
    assert fresh_store(["torchrun", "--max-restarts", "2", "train.py"], {VARIABLE: "0"}) == {}


def test_a_restarted_rank_with_the_old_store_is_told_why_it_may_hang() -> None:
    restarted = {"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert f"start torchrun with {VARIABLE}=1" in why_it_may_hang(restarted)
    assert why_it_may_hang(restarted | FRESH) == ""
    assert why_it_may_hang(restarted | {"TORCHELASTIC_USE_AGENT_STORE": "False"}) == ""
    assert why_it_may_hang(restarted | {"TORCHELASTIC_RESTART_COUNT": "0"}) == ""
    assert why_it_may_hang({}) == ""


@pytest.mark.slow
@pytest.mark.distributed
def test_a_killed_rank_is_restarted_and_the_run_goes_on(tmp_path: Path) -> None:
    """Over gloo, with nothing set by hand. The example has guards of its own, and keeps them."""
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    done = subprocess.run(
        [
            sys.executable, "-m", "steadygrad.commands", "run", "--json", "--", sys.executable, "-m",
            "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", str(EXAMPLE),
            str(tmp_path / "run"), "--kill-rank", "1",
        ],
        cwd=tmp_path, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
        timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("'began_at': 40") == 2, done.stdout
    assert json.loads(done.stderr.splitlines()[-1])["exit_code"] == 0
