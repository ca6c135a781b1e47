"""Guarded runs are killed with SIGKILL at random moments, resumed, and end with the bits of a run let alone."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steadygrad.journal import read_steps

KILLED = -signal.SIGKILL


class Nursery:
    """The process that forks runs; see guard_nursery.py."""

    def __init__(self) -> None:
        script = str(Path(__file__).with_name("guard_nursery.py"))
        self._process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._read() == "ready"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, **wanted: Any) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return int(self._read())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    it = Nursery()
    yield it
    it.close()


def result(run: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((run.parent / f"{run.name}.json").read_text())
    return answer


def kill_and_resume(nursery: Nursery, where: Path, mode: str, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    assert nursery.ask(run=str(where / "whole"), mode=mode, after=None) == 0
    expected = result(where / "whole")
    assert expected["guard_faults"] == {}
    assert (expected["applied"], expected["skipped"]) == (86, 4)
    killed = 0
    rounds = 0
    while killed < kills:
        run = where / f"killed-{rounds}"
        rounds += 1
        # A run takes about a second; several kills fall into each one, in forward, in a checkpoint, in a resume.
        for _ in range(6):
            if nursery.ask(run=str(run), mode=mode, after=rng.uniform(0.03, 0.4)) != KILLED:
                break
            killed += 1
        assert nursery.ask(run=str(run), mode=mode, after=None) == 0
        assert result(run) == expected
        steps = {record.step for record in read_steps(run) if record.applied}
        assert len(steps) == expected["applied"]
        leftovers = [path.name for path in (run / "snapshots").iterdir() if path.name.startswith(".")]
        assert leftovers == []
    assert killed >= kills


@pytest.mark.parametrize("mode", ["now", "late"])
def test_a_run_killed_and_resumed_again_and_again_ends_with_the_same_bits(
    nursery: Nursery, mode: str, tmp_path: Path
) -> None:
    kill_and_resume(nursery, tmp_path, mode, kills=6, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["now", "late"])
def test_hundreds_of_kills(nursery: Nursery, mode: str, tmp_path: Path) -> None:
    kill_and_resume(nursery, tmp_path, mode, kills=250, seed=2)


def test_a_writer_killed_at_any_call_to_the_system_leaves_the_old_checkpoint_or_the_new_one(
    nursery: Nursery, tmp_path: Path
) -> None:
    """With a single one kept there is no older one to fall back on: the last good state is whole at every instant."""
    import torch
    from torch import nn

    from steadygrad.engine.state.checkpoint_store import CheckpointStore
    from steadygrad.engine.state.forward_state import ForwardState
    from steadygrad.engine.state.training_state import TrainingState

    nothing = TrainingState(parameters={}, optimizers=(), forward=ForwardState([nn.Identity()]))
    seen: set[int] = set()
    for at in range(1, 200):
        run = tmp_path / str(at)
        ended = nursery.ask(write=str(run), at=at)
        loaded = CheckpointStore(run / "snapshots", nothing, every=1).load_newest()
        assert loaded is not None, f"no checkpoint after a kill at call {at}"
        _, tree, log = loaded
        assert all(torch.isfinite(value).all() for value in tree["parameters"].values())
        seen.add(log["saved"])
        if ended == 0:
            break
        assert ended == KILLED
    assert ended == 0, "the writer makes more calls than were tried"
    assert at > 20
    assert seen == {0, 1, 2}  # the old one, and each of the new ones
