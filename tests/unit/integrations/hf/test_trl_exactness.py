"""Every TRL trainer under the guard: a refused batch leaves no trace, and nothing is generated twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainer_specimens import all_finite, differences, logged, state_of, train
from transformers import Trainer
from trl_specimens import (
    ROWS_A_BATCH,
    batches,
    distillation_trainer,
    dpo_trainer,
    grpo_trainer,
    kto_trainer,
    reward_trainer,
    rloo_trainer,
    sft_trainer,
    token_rows,
)  # fmt: skip

import steadygrad as sg

STEPS = 5
BAD = 2
Make = Callable[..., Trainer]


def compared(path: Path, make: Make, accumulation: int, **options: Any) -> tuple[Any, Trainer, Trainer]:
    """The guarded run over the poisoned data, and the plain run over the data without that batch."""
    rows, without = batches(STEPS, bad=BAD, size=ROWS_A_BATCH[make] * accumulation)
    trainer = make(path / "guarded", rows, gradient_accumulation_steps=accumulation, max_steps=STEPS)
    guard = sg.attach(trainer, run_dir=path / "run", **options)
    train(trainer)
    reference = make(
        path / "plain", without, gradient_accumulation_steps=accumulation, max_steps=STEPS, stop_at=STEPS - 1
    )  # fmt: skip
    return guard, trainer, train(reference)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("make", [sft_trainer, grpo_trainer])
def test_one_poisoned_batch_leaves_no_trace(tmp_path: Path, make: Make, accumulation: int) -> None:
    guard, trainer, reference = compared(tmp_path, make, accumulation, diagnose="off")
    assert guard.summary()["skipped"] == 1
    assert guard.summary()["guard_faults"] == {}
    assert differences(state_of(trainer), state_of(reference)) == []
    assert (trainer.state.global_step, reference.state.global_step) == (STEPS, STEPS - 1)
    norms = [norm for norm in logged(trainer, "grad_norm") if norm == norm]
    assert len(norms) == STEPS - 1
    assert max(norms) > 0  # it did train


@pytest.mark.parametrize(
    ("make", "accumulation"),
    [
        (dpo_trainer, 1),
        pytest.param(dpo_trainer, 2, marks=pytest.mark.slow),
        (kto_trainer, 1),
        pytest.param(kto_trainer, 2, marks=pytest.mark.slow),
        (reward_trainer, 2),
        pytest.param(reward_trainer, 1, marks=pytest.mark.slow),
        pytest.param(rloo_trainer, 1, marks=pytest.mark.slow),
        pytest.param(rloo_trainer, 2, marks=pytest.mark.slow),
        (distillation_trainer, 2),
        pytest.param(distillation_trainer, 1, marks=pytest.mark.slow),
    ],
)
def test_the_other_trainers_are_as_exact(tmp_path: Path, make: Make, accumulation: int) -> None:
    guard, trainer, reference = compared(tmp_path, make, accumulation, diagnose="off")
    assert guard.summary()["skipped"] == 1
    assert guard.summary()["guard_faults"] == {}
    assert differences(state_of(trainer), state_of(reference)) == []


@pytest.mark.parametrize("every", [1, 2])
def test_a_reference_model_that_follows_the_weights_counts_applied_updates_only(tmp_path: Path, every: int) -> None:
    """Synced every two steps, the refused one would also put off every later sync."""

    def make(folder: Path, rows: Any, **arguments: Any) -> Trainer:
        options = {"sync_ref_model": True, "ref_model_sync_steps": every, "ref_model_mixup_alpha": 0.5}
        return dpo_trainer(folder, rows, **options, **arguments)

    rows, without = batches(STEPS, bad=BAD, size=2)
    trainer = make(tmp_path / "guarded", rows, max_steps=STEPS)
    guard = sg.attach(trainer, diagnose="off")
    train(trainer)
    reference = train(make(tmp_path / "plain", without, max_steps=STEPS, stop_at=STEPS - 1))
    assert guard.summary()["skipped"] == 1
    mine, theirs = dict(trainer.ref_model.named_parameters()), dict(reference.ref_model.named_parameters())
    assert differences(mine, theirs) == []
    assert differences(state_of(trainer), state_of(reference)) == []
    start = dict(dpo_trainer(tmp_path / "new", rows).ref_model.named_parameters())
    assert differences(mine, start) != []  # it did follow


@pytest.mark.parametrize("make", [sft_trainer, grpo_trainer])
def test_a_diagnosis_on_the_spot_names_the_line_and_leaves_no_trace(tmp_path: Path, make: Make) -> None:
    guard, trainer, reference = compared(tmp_path, make, 2)
    assert differences(state_of(trainer), state_of(reference)) == []
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis.cause.slug == "zero_division"
    assert diagnosis.origin.module == "transformer.wte"
    assert "output / known" in diagnosis.origin.code_line
    # Running a step again puts nothing into the metrics: one value each for a logged step, or none.
    assert len(logged(trainer, "loss")) == STEPS


@pytest.mark.parametrize(("make", "judged"), [(grpo_trainer, False), (rloo_trainer, False), (sft_trainer, True)])
def test_the_level_of_a_loss_that_is_zero_by_construction_is_not_judged(
    tmp_path: Path, make: Make, judged: bool
) -> None:
    rows, _ = batches(2, bad=1, size=ROWS_A_BATCH[make])
    guard = sg.attach(make(tmp_path, rows))
    assert guard.policy.judge_loss_level is judged
    guard.close()


def test_nothing_is_generated_twice_and_a_refused_slice_leaves_the_others(tmp_path: Path) -> None:
    """One generation serves four steps; those with the bad prompt are refused, the others use what was generated."""
    rows = token_rows(8, bad=[2])
    trainer = grpo_trainer(tmp_path / "out", rows, steps_per_generation=4, max_steps=8)
    calls: list[int] = []
    generate = trainer._generate_and_score_completions

    def counted(inputs: Any) -> Any:
        calls.append(trainer.state.global_step)
        return generate(inputs)

    trainer._generate_and_score_completions = counted
    guard = sg.attach(trainer, run_dir=tmp_path / "run")
    train(trainer)
    assert calls == [0, 4]
    assert guard.summary()["skipped"] in (1, 2)  # the trainer shuffles: both completions in one slice, or in two
    assert guard.summary()["steps"] == 8
    assert guard.summary()["guard_faults"] == {}
    assert guard.incidents[0].diagnosis is not None
    assert all_finite(trainer)


def test_an_entropy_controller_does_not_learn_from_a_refused_batch(tmp_path: Path) -> None:
    guard, trainer, reference = compared_with_entropy(tmp_path)
    assert guard.summary()["skipped"] == 1
    for name in ("entropy_coef", "_last_world_entropy"):
        assert getattr(trainer, name) == getattr(reference, name), name
    assert differences(state_of(trainer), state_of(reference)) == []


def compared_with_entropy(path: Path) -> tuple[Any, Trainer, Trainer]:
    def make(folder: Path, rows: Any, **arguments: Any) -> Trainer:
        return grpo_trainer(folder, rows, use_adaptive_entropy=True, entropy_target=3.0, entropy_coef=0.01, **arguments)

    rows, without = batches(STEPS, bad=BAD, size=1)
    trainer = make(path / "guarded", rows, max_steps=STEPS)
    guard = sg.attach(trainer, diagnose="off")
    train(trainer)
    return guard, trainer, train(make(path / "plain", without, max_steps=STEPS, stop_at=STEPS - 1))
