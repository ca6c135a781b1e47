"""The trainers of `trl.experimental` under the guard: a refused batch leaves no trace in any of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_trl_exactness import BAD, STEPS, Make
from trainer_specimens import differences, state_of, train
from trl_experimental_specimens import ROWS_OF_EXPERIMENTS, cpo_trainer, online_dpo_trainer, sdpo_trainer
from trl_specimens import batches

import steadygrad as sg

FAST = (cpo_trainer, sdpo_trainer)


@pytest.mark.parametrize("accumulation", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "make",
    [make if make in FAST else pytest.param(make, marks=pytest.mark.slow) for make in ROWS_OF_EXPERIMENTS],
    ids=lambda make: make.__name__.removesuffix("_trainer"),
)
def test_one_poisoned_batch_leaves_no_trace_in_an_experiment(tmp_path: Path, make: Make, accumulation: int) -> None:
    rows, without = batches(STEPS, bad=BAD, size=ROWS_OF_EXPERIMENTS[make] * accumulation)
    options = {"gradient_accumulation_steps": accumulation, "max_steps": STEPS}
    trainer = make(tmp_path / "guarded", rows, **options)
    guard = sg.attach(trainer, run_dir=tmp_path / "run", diagnose="origin")
    train(trainer)
    reference = train(make(tmp_path / "plain", without, stop_at=STEPS - 1, **options))
    assert guard.summary()["skipped"] == 1
    assert guard.summary()["guard_faults"] == {}
    assert differences(state_of(trainer), state_of(reference)) == []
    diagnosis = guard.incidents[0].diagnosis
    if make is online_dpo_trainer:
        assert diagnosis is None  # a training_step of its own: it cannot be run again, and that is said
    else:
        assert diagnosis is not None
        assert diagnosis.cause is not None
        assert diagnosis.cause.slug == "zero_division"
