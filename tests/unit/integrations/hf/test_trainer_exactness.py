"""A batch that a Trainer's guard refuses leaves no trace, and a healthy run is not touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_specimens import all_finite, differences, logged, state_of, tiny_trainer, token_dataset, train
from transformers import Trainer, TrainerCallback

import steadygrad as sg
from steadygrad import Policy
from steadygrad.testing.fault_kinds import Flip, flip_bits

STEPS = 8
BAD = 3
SKIP_ONLY = Policy.named("balanced").but(escalation=(), skip_streak_halt=10_000, skips_per_window=(10_000, 200))


def poisoned(path: Path, accumulation: int, **arguments: Any) -> Trainer:
    rows = 2 * accumulation
    dataset = token_dataset(STEPS * rows, bad=[BAD * rows])
    return tiny_trainer(path, dataset, gradient_accumulation_steps=accumulation, max_steps=STEPS, **arguments)


def never_saw_it(path: Path, accumulation: int, **arguments: Any) -> Trainer:
    rows = 2 * accumulation
    dataset = token_dataset(STEPS * rows, without=range(BAD * rows, (BAD + 1) * rows))
    return train(
        tiny_trainer(
            path, dataset, gradient_accumulation_steps=accumulation, max_steps=STEPS, stop_at=STEPS - 1, **arguments
        )
    )


def test_without_a_guard_the_same_batch_kills_the_model(tmp_path: Path) -> None:
    assert not all_finite(train(poisoned(tmp_path, 1)))


@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_one_poisoned_batch_leaves_no_trace(tmp_path: Path, accumulation: int) -> None:
    trainer = poisoned(tmp_path / "guarded", accumulation)
    guard = sg.attach(trainer, diagnose="off")
    train(trainer)
    reference = never_saw_it(tmp_path / "plain", accumulation)
    assert guard.summary()["skipped"] == 1
    assert guard.summary()["guard_faults"] == {}
    assert differences(state_of(trainer), state_of(reference)) == []
    # The one thing that differs: the framework itself counts the step.
    assert (trainer.state.global_step, reference.state.global_step) == (STEPS, STEPS - 1)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_flipped_bit_leaves_no_trace(tmp_path: Path, accumulation: int) -> None:
    class Flipping(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step == 4:
                flip_bits(model.transformer.ln_f.weight, Flip(place=3, mask=1 << 27))

    def make(path: Path) -> Trainer:
        dataset = token_dataset(STEPS * 2 * accumulation)
        return tiny_trainer(path, dataset, gradient_accumulation_steps=accumulation, max_steps=STEPS)

    trainer = make(tmp_path / "guarded")
    trainer.add_callback(Flipping())
    guard = sg.attach(trainer, diagnose="off")
    train(trainer)
    assert differences(state_of(trainer), state_of(train(make(tmp_path / "plain")))) == []
    assert [found.code for incident in guard.incidents for found in incident.findings] == ["SY415"]
    assert guard.summary()["skipped"] == 0


def test_a_diagnosis_on_the_spot_leaves_no_trace_either(tmp_path: Path) -> None:
    trainer = poisoned(tmp_path / "guarded", 2)
    guard = sg.attach(trainer, run_dir=tmp_path / "run")
    train(trainer)
    assert differences(state_of(trainer), state_of(never_saw_it(tmp_path / "plain", 2))) == []
    (incident,) = guard.incidents
    assert incident.diagnosis is not None
    assert incident.diagnosis.cause is not None
    assert incident.diagnosis.cause.slug == "zero_division"
    assert incident.diagnosis.origin is not None
    assert incident.diagnosis.origin.module == "transformer.wte"
    assert "output / known" in (incident.diagnosis.origin.code_line or "")
    assert incident.diagnosis.rows == (0,)
    assert [trial.remedy.slug for trial in incident.diagnosis.remedies if trial.verified]


def test_the_capsule_holds_the_inputs_the_trainer_gave_its_loss(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    trainer = poisoned(tmp_path / "guarded", 1)
    guard = sg.attach(trainer, run_dir=tmp_path / "run", diagnose="off")
    train(trainer)
    capsule = guard.incidents[0].capsule
    assert capsule is not None
    tensors = load_file(tmp_path / "run" / capsule)
    rows = torch.tensor(token_dataset(STEPS * 2, bad=[BAD * 2])["input_ids"][BAD * 2 : BAD * 2 + 2])
    assert any(tensor.shape == rows.shape and torch.equal(tensor, rows) for tensor in tensors.values())
    described = json.loads((tmp_path / "run" / capsule).with_suffix(".json").read_text())
    assert "steady.num_items_in_batch" in json.dumps(described)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_healthy_run_is_bit_identical_with_the_guard_attached(tmp_path: Path, accumulation: int) -> None:
    dataset = token_dataset(STEPS * 2 * accumulation)
    runs = [
        tiny_trainer(tmp_path / name, dataset, gradient_accumulation_steps=accumulation, max_steps=STEPS)
        for name in ("guarded", "plain")
    ]
    guard = sg.attach(runs[0], run_dir=tmp_path / "run")
    guarded, plain = (train(run) for run in runs)
    assert differences(state_of(guarded), state_of(plain)) == []
    for key in ("loss", "grad_norm", "learning_rate"):
        assert logged(guarded, key) == logged(plain, key)
    assert guard.summary()["applied"] == STEPS
    assert guard.summary()["guard_faults"] == {}


@pytest.mark.parametrize("bad", [0, STEPS - 1])
def test_the_first_and_the_last_batch_can_be_the_bad_one(tmp_path: Path, bad: int) -> None:
    trainer = tiny_trainer(tmp_path / "guarded", token_dataset(STEPS * 2, bad=[2 * bad]), max_steps=STEPS)
    sg.attach(trainer, diagnose="off")
    train(trainer)
    dataset = token_dataset(STEPS * 2, without=[2 * bad, 2 * bad + 1])
    reference = train(tiny_trainer(tmp_path / "plain", dataset, max_steps=STEPS, stop_at=STEPS - 1))
    assert differences(state_of(trainer), state_of(reference)) == []


def test_several_bad_batches_in_a_row_and_apart_leave_no_trace(tmp_path: Path) -> None:
    bad = [1, 2, 5]
    dataset = token_dataset(STEPS * 2, bad=[2 * b for b in bad])
    trainer = tiny_trainer(tmp_path / "guarded", dataset, max_steps=STEPS)
    guard = sg.attach(trainer, diagnose="off", policy=SKIP_ONLY)
    train(trainer)
    clean = token_dataset(STEPS * 2, without=[row for b in bad for row in (2 * b, 2 * b + 1)])
    reference = train(tiny_trainer(tmp_path / "plain", clean, max_steps=STEPS, stop_at=STEPS - len(bad)))
    assert guard.summary()["skipped"] == len(bad)
    assert differences(state_of(trainer), state_of(reference)) == []


def test_an_epoch_whose_last_window_is_shorter_is_exact(tmp_path: Path) -> None:
    """Five batches at accumulation two: windows of 2, 2 and 1; the last one of the first epoch is bad."""
    runs = []
    for name, dataset in (
        ("guarded", token_dataset(10, bad=[8])),
        ("plain", token_dataset(10, without=[8, 9])),
    ):
        trainer = tiny_trainer(
            tmp_path / name, dataset, gradient_accumulation_steps=2, num_train_epochs=1, max_steps=-1
        )
        trainer.args.lr_scheduler_type = "constant"
        if name == "guarded":
            guard = sg.attach(trainer, diagnose="off")
        runs.append(train(trainer))
    assert guard.summary()["skipped"] == 1
    mine, theirs = (state_of(run) for run in runs)
    assert differences(mine["weights"], theirs["weights"]) == []
    assert differences(mine["moments"], theirs["moments"]) == []


def test_a_poisoned_weight_is_rolled_back_and_the_good_batches_run_again(tmp_path: Path) -> None:
    """Somebody writes a NaN into a weight between two steps: no batch is to blame, so none may be lost."""
    from transformers import TrainerCallback

    class Poison(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.global_step == 5 and not self.done:
                self.done = True
                with torch.no_grad():
                    model.transformer.h[0].ln_1.weight[0] = torch.nan

        done = False

    trainer = tiny_trainer(tmp_path / "guarded", token_dataset(STEPS * 2), max_steps=STEPS)
    trainer.add_callback(Poison())
    guard = sg.attach(trainer, diagnose="off", policy=Policy.named("balanced").but(snapshot_every=4))
    train(trainer)
    assert guard.summary()["rolled_back"] == 1
    assert guard.summary()["guard_faults"] == {}
    reference = train(tiny_trainer(tmp_path / "plain", token_dataset(STEPS * 2), max_steps=STEPS))
    assert all_finite(trainer)
    assert differences(state_of(trainer), state_of(reference)) == []


@pytest.mark.parametrize("accumulation", [1, 2])
def test_what_follows_a_trial_of_rates_is_the_training_with_that_rate_from_the_start(
    tmp_path: Path, accumulation: int
) -> None:
    def trained(lr: float, path: Path) -> tuple[Trainer, Any]:
        trainer = tiny_trainer(
            path, token_dataset(40 * 2 * accumulation), gradient_accumulation_steps=accumulation, max_steps=40,
            learning_rate=lr, lr_scheduler_type="constant",
        )  # fmt: skip
        guard = sg.attach(trainer, diagnose="off")
        return train(trainer), guard

    saved, guard = trained(3.0, tmp_path / "far too high")
    assert guard.summary()["rolled_back"] == 1
    factor = guard.summary()["lr_factor"]
    assert factor < 1.0
    chosen, untouched = trained(3.0 * factor, tmp_path / "chosen")
    assert untouched.summary()["rolled_back"] == 0
    mine, theirs = (each.model.state_dict() for each in (saved, chosen))
    assert [name for name, value in mine.items() if not torch.equal(value, theirs[name])] == []
    assert saved.state.global_step == chosen.state.global_step == 40
