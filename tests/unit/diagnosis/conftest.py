"""Small sick programs for the clinic: a model, a loss, a batch, and the patient made of them."""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:  # the zoo is not installed with the package
    sys.path.insert(0, str(ROOT))

MakePatient = Callable[..., Any]


@pytest.fixture
def make_replayable() -> MakePatient:
    """make_patient(model, loss_fn, batches, step=0, **case options): the patient just before that step."""
    replayables = importlib.import_module("zoo.patients")
    protocol = importlib.import_module("zoo.protocol")
    replay = importlib.import_module("steadygrad.diagnosis.replay.replay_step").replay

    def make(model: torch.nn.Module, loss_fn: Any, batches: list[Any], step: int = 0, **options: Any) -> Any:
        options.setdefault("optimizer", torch.optim.AdamW(model.parameters(), lr=1e-3))
        run = replayables._Run(protocol.Case(model, loss_fn, batches, **options))
        for index in range(step + 1):
            run.snapshots[index] = replayables.Snapshot(run.case)
            if index < step:
                seen = replay(run.replayable(index), restore=False)
                run.history.append(replayables._record(index, seen, run.case))
        return run.replayable(step)

    return make


@pytest.fixture
def run_case() -> Callable[..., Any]:
    """run_case(case): the watched loop of the zoo."""
    return importlib.import_module("zoo.patients").run_case


@pytest.fixture
def make_case() -> Callable[..., Any]:
    return importlib.import_module("zoo.protocol").Case
