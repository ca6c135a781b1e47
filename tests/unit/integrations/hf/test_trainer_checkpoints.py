"""Checkpoints of a guarded Trainer: never a poisoned one written as good, loaded as best, or trained on from."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from trainer_specimens import all_finite, differences, state_of, tiny_trainer, token_dataset, train
from transformers import Trainer, TrainerCallback

import steadygrad as sg
from steadygrad import UsageError
from steadygrad.integrations.hf.trainer_checkpoints import non_finite_weights
from steadygrad.journal import read_events

STEPS = 6


class PoisonAt(TrainerCallback):
    """Writes a NaN into a weight at the end of a step, as a bug elsewhere would, and takes it away after the save."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.saved: torch.Tensor | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step == self.step:
            weight = model.transformer.ln_f.weight
            self.saved = weight.detach().clone()
            with torch.no_grad():
                weight[0] = torch.nan

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.saved is not None:
            with torch.no_grad():
                model.transformer.ln_f.weight.copy_(self.saved)
            self.saved = None


def saving(path: Path, dataset: Any = None, **arguments: Any) -> Trainer:
    options = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": 2} | arguments
    return tiny_trainer(path, token_dataset(STEPS * 2) if dataset is None else dataset, **options)


def folders(path: Path) -> list[str]:
    return sorted(folder.name for folder in path.glob("checkpoint-*"))


def test_a_poisoned_checkpoint_is_not_written_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = saving(tmp_path / "out")
    guard = sg.attach(trainer, run_dir=tmp_path / "run")
    trainer.add_callback(PoisonAt(4))
    with caplog.at_level(logging.ERROR, logger="steadygrad"):
        train(trainer)
    assert folders(tmp_path / "out") == ["checkpoint-2", "checkpoint-6"]
    assert "checkpoint-4 was not written: transformer.ln_f.weight is not finite" in caplog.text
    assert guard.summary()["checkpoints_refused"] == [4]
    guard.close()
    assert "checkpoint_refused" in (tmp_path / "run" / "events.jsonl").read_text()


def test_when_training_ends_the_weights_were_checked_and_the_newest_checkpoint_is_recorded(tmp_path: Path) -> None:
    trainer = saving(tmp_path / "out")
    guard = sg.attach(trainer, run_dir=tmp_path / "run")
    train(trainer)
    assert guard.summary()["final_state"] == "finite"
    guard.close()
    assert guard.summary()["final_state"] == "finite"
    events = read_events(tmp_path / "run")
    assert [event.kind for event in events].count("final_state") == 1
    saved = [event.data["path"] for event in events if event.kind == "checkpoint_saved"]
    assert saved == [str(tmp_path / "out" / name) for name in ("checkpoint-2", "checkpoint-4", "checkpoint-6")]
    assert [event.data for event in events if event.kind == "program_ended"] == [{"how": "finished"}]


def test_without_a_guard_it_is_written(tmp_path: Path) -> None:
    trainer = saving(tmp_path)
    trainer.add_callback(PoisonAt(4))
    train(trainer)
    assert "checkpoint-4" in folders(tmp_path)
    assert non_finite_weights(tmp_path / "checkpoint-4") == ["transformer.ln_f.weight"]
    assert non_finite_weights(tmp_path / "checkpoint-2") == []


def best(path: Path, **arguments: Any) -> Trainer:
    return saving(
        path, eval_dataset=token_dataset(4), eval_strategy="steps", eval_steps=2, load_best_model_at_end=True,
        metric_for_best_model="eval_loss", greater_is_better=False, **arguments,
    )  # fmt: skip


def test_the_best_model_is_loaded_at_the_end_as_without_a_guard(tmp_path: Path) -> None:
    guarded, plain = best(tmp_path / "a"), best(tmp_path / "b")
    sg.attach(guarded)
    for trainer in (guarded, plain):
        train(trainer)
        assert trainer.state.best_model_checkpoint is not None
    assert Path(guarded.state.best_model_checkpoint).name == Path(plain.state.best_model_checkpoint).name
    assert differences(state_of(guarded)["weights"], state_of(plain)["weights"]) == []


def test_a_step_with_a_poisoned_weight_or_an_infinite_metric_is_never_the_best(tmp_path: Path) -> None:
    trainer = best(tmp_path)
    sg.attach(trainer)

    class Improve(TrainerCallback):
        """A metric that is lowest exactly where it must not count: minus infinity at step 4."""

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
            if state.global_step == 4:
                metrics["eval_loss"] = float("-inf")

    trainer.add_callback(Improve())
    trainer.add_callback(PoisonAt(6))
    train(trainer)
    assert trainer.state.best_global_step == 2
    assert folders(tmp_path) == ["checkpoint-2", "checkpoint-4"]
    assert all_finite(trainer)


def test_a_best_checkpoint_that_went_bad_on_disk_is_not_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Spoil(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for file in tmp_path.glob("checkpoint-*/model.safetensors"):
                tensors = load_file(file)
                tensors["transformer.ln_f.bias"][0] = torch.inf
                save_file(tensors, file, metadata={"format": "pt"})

    trainer = best(tmp_path)
    sg.attach(trainer)
    trainer.add_callback(Spoil())
    with caplog.at_level(logging.ERROR, logger="steadygrad"):
        train(trainer)
    assert "was not loaded: transformer.ln_f.bias is not finite in it" in caplog.text
    assert all_finite(trainer)


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    dataset = token_dataset(STEPS * 2, bad=[2])
    whole = saving(tmp_path / "whole", dataset)
    sg.attach(whole, diagnose="off")
    train(whole)
    first = saving(tmp_path / "parts", dataset)
    sg.attach(first, diagnose="off").trainer.add_callback(Stop(4))
    train(first)
    second = saving(tmp_path / "parts", dataset)
    guard = sg.attach(second, diagnose="off")
    train(second, resume_from_checkpoint=True)
    assert differences(state_of(second), state_of(whole)) == []
    assert (guard.summary()["steps"], guard.summary()["skipped"]) == (STEPS, 1)
    assert guard.summary()["first_bad_step"] == 1
    assert second.state.global_step == STEPS


class Stop(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = control.should_training_stop or state.global_step >= self.step


def test_the_counters_lie_beside_the_checkpoint_as_plain_json(tmp_path: Path) -> None:
    trainer = saving(tmp_path, token_dataset(STEPS * 2, bad=[2]))
    sg.attach(trainer, diagnose="off")
    train(trainer)
    log = json.loads((tmp_path / "checkpoint-4" / "steady.json").read_text())
    assert log["step"] == 4
    assert log["ledger"]["skipped"] == 1


@pytest.mark.parametrize("content", ["", '{"ledger": 3, "history": [], "step": "x", "batches_seen": 0}'])
def test_counters_that_cannot_be_read_do_not_stop_a_resumed_run(tmp_path: Path, content: str) -> None:
    first = saving(tmp_path)
    sg.attach(first).trainer.add_callback(Stop(4))
    train(first)
    (tmp_path / "checkpoint-4" / "steady.json").write_text(content)
    second = saving(tmp_path)
    guard = sg.attach(second)
    train(second, resume_from_checkpoint=True)
    assert second.state.global_step == STEPS
    assert guard.summary()["steps"] == STEPS - 4


def test_a_poisoned_checkpoint_is_not_trained_on_from(tmp_path: Path) -> None:
    first = saving(tmp_path)
    train(first)
    file = tmp_path / "checkpoint-6" / "model.safetensors"
    tensors = load_file(file)
    tensors["transformer.ln_f.bias"][0] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})
    second = saving(tmp_path, max_steps=8)
    sg.attach(second)
    with pytest.raises(
        UsageError, match=r"checkpoint-6 is poisoned: transformer.ln_f.bias is not finite.*checkpoint-4"
    ):
        train(second, resume_from_checkpoint=True)
