"""Putting a guard on a Trainer, taking it off, and what cannot be done, in one sentence each."""

from __future__ import annotations

import importlib.metadata
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_specimens import all_finite, differences, state_of, tiny_model, tiny_trainer, token_dataset, train
from transformers import Trainer, TrainerCallback

import steadygrad as sg
from steadygrad import TrainingHalted, UsageError

STEPS = 6
BAD = 3


def poisoned(path: Path, **arguments: Any) -> Trainer:
    return tiny_trainer(path, token_dataset(STEPS * 2, bad=[2 * BAD]), **({"max_steps": STEPS} | arguments))


def own_attributes(trainer: Trainer) -> dict[str, set[str]]:
    return {
        "trainer": {name for name in vars(trainer) if callable(vars(trainer)[name])},
        "accelerator": {name for name in vars(trainer.accelerator) if callable(vars(trainer.accelerator)[name])},
        "callbacks": {type(callback).__name__ for callback in trainer.callback_handler.callbacks},
    }


def test_closing_takes_everything_off_again(tmp_path: Path) -> None:
    trainer = poisoned(tmp_path)
    before = own_attributes(trainer)
    guard = sg.attach(trainer)
    assert own_attributes(trainer) != before
    guard.close()
    guard.close()
    assert own_attributes(trainer) == before


def test_closing_after_training_gives_the_optimizer_its_own_step_back(tmp_path: Path) -> None:
    trainer = poisoned(tmp_path)
    before = own_attributes(trainer)
    with sg.attach(trainer, diagnose="off"):
        train(trainer)
    after = own_attributes(trainer)
    assert after["callbacks"] == before["callbacks"]
    assert not {"training_step", "compute_loss", "log", "_save_checkpoint"} & after["trainer"]
    assert not {"backward", "clip_grad_norm_"} & after["accelerator"]
    assert trainer.optimizer.step.__qualname__.startswith("AcceleratedOptimizer")
    assert trainer.optimizer._is_overflow is False


def test_a_trainers_incident_is_told_to_whom_notify_names(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    trainer = poisoned(tmp_path)
    with sg.attach(trainer, diagnose="off", notify=told.append):
        train(trainer)
    assert [each["incident"]["first_step"] for each in told] == [BAD]


def test_one_guard_works_through_several_calls_of_train(tmp_path: Path) -> None:
    trainer = poisoned(tmp_path)
    guard = sg.attach(trainer, diagnose="off", run_dir=tmp_path / "run")
    train(trainer)
    train(trainer)
    assert len(guard.incidents) == 2
    assert all_finite(trainer)


def test_attaching_in_the_middle_of_training_works_from_the_next_step(tmp_path: Path) -> None:
    guards = []

    class Late(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                guards.append(sg.attach(trainer, diagnose="off"))

    trainer = poisoned(tmp_path)
    trainer.add_callback(Late())
    train(trainer)
    assert guards[0].summary()["skipped"] == 1
    assert guards[0].summary()["steps"] == STEPS - 2
    assert all_finite(trainer)


def test_an_optimizer_made_before_attaching_is_guarded_too(tmp_path: Path) -> None:
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    trainer = Trainer(
        model=model, args=poisoned(tmp_path).args, train_dataset=token_dataset(STEPS * 2, bad=[2 * BAD]),
        optimizers=(optimizer, schedule),
    )  # fmt: skip
    guard = sg.attach(trainer, diagnose="off")
    train(trainer)
    assert guard.summary()["skipped"] == 1
    assert all_finite(trainer)
    assert trainer.lr_scheduler.state_dict()["last_epoch"] == STEPS - 1


def test_a_trainer_attached_twice_is_one_sentence(tmp_path: Path) -> None:
    trainer = poisoned(tmp_path)
    with sg.attach(trainer), pytest.raises(UsageError, match=r"This Trainer is already attached.*close\(\) the first"):
        sg.attach(trainer)
    sg.attach(trainer).close()


def test_an_option_that_is_the_trainers_own_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no option 'max_grad_norm'.*are the trainer's own"):
        sg.attach(poisoned(tmp_path), max_grad_norm=1.0)


@pytest.mark.parametrize(("library", "old"), [("transformers", "4.57.1"), ("accelerate", "1.2.0")])
def test_a_library_that_is_too_old_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, old: str
) -> None:
    trainer = poisoned(tmp_path)
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: old if name == library else real(name))
    with pytest.raises(UsageError, match=rf"needs {library} \d+\.\d+ or newer, and {old} is installed. Upgrade with"):
        sg.attach(trainer)
    monkeypatch.undo()
    sg.attach(trainer).close()


def test_an_unknown_object_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="does not know what to do with a dict"):
        sg.attach({"trainer": None})


def test_a_run_that_never_recovers_halts_with_the_last_good_weights(tmp_path: Path) -> None:
    rows = STEPS * 2
    dataset = token_dataset(rows, bad=range(2 * BAD, rows))
    policy = sg.Policy.named("balanced").but(skip_streak_halt=2, escalation=())
    trainer = tiny_trainer(tmp_path / "a", dataset, max_steps=STEPS)
    guard = sg.attach(trainer, diagnose="off", policy=policy)
    with pytest.raises(TrainingHalted, match="The refused updates were not applied"):
        train(trainer)
    assert guard.summary()["halted"]
    reference = train(tiny_trainer(tmp_path / "b", token_dataset(rows), max_steps=STEPS, stop_at=BAD))
    assert differences(state_of(trainer)["weights"], state_of(reference)["weights"]) == []


def test_observing_refuses_nothing_and_says_what_it_saw(tmp_path: Path) -> None:
    trainer = poisoned(tmp_path)
    guard = sg.attach(trainer, policy="observe", diagnose="off")
    train(trainer)
    assert not all_finite(trainer)
    assert guard.summary()["skipped"] == 0


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("deepspeed", "DeepSpeed makes its update inside backward"),
        ("fsdp", "FSDP through a Trainer keeps its weights and gradients in shards"),
        ("lomo", "makes its update inside backward"),
    ],
)
def test_what_cannot_be_refused_is_watched_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, what: str, words: str
) -> None:
    """The plugins themselves are not here; what they set on a trainer is, and that is what the guard goes by."""
    from steadygrad.integrations.hf import version_support

    trainer = poisoned(tmp_path)
    seen = version_support.why_only_watch(trainer)
    assert seen is None
    with monkeypatch.context() as patch:
        if what == "lomo":
            patch.setattr(trainer.args, "optim", "adalomo")
        else:
            patch.setattr(trainer, f"is_{what}_enabled", True)
        reason = version_support.why_only_watch(trainer)
    assert reason is not None
    assert words in reason
    monkeypatch.setattr(version_support, "why_only_watch", lambda _trainer: reason)
    with caplog.at_level(logging.WARNING, logger="steadygrad"):
        guard = sg.attach(trainer, run_dir=tmp_path / "run")
        train(trainer)
    assert "only watches this run: it records and refuses nothing" in caplog.text
    assert guard.only_watching == reason
    assert guard.summary()["steps"] == STEPS
    assert guard.summary()["skipped"] == 0
    assert guard.summary()["guard_faults"] == {}
    assert not all_finite(trainer)
    guard.close()
    assert "the loss is nan" in (tmp_path / "run" / "events.jsonl").read_text()


def test_a_step_that_calls_backward_twice_is_refused_but_not_run_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Twice(Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            super().training_step(model, dict(inputs), num_items_in_batch)
            return super().training_step(model, inputs, num_items_in_batch)

    trainer = tiny_trainer(tmp_path, token_dataset(STEPS * 2, bad=[2 * BAD]), max_steps=STEPS, kind=Twice)
    guard = sg.attach(trainer)
    train(trainer)
    assert "calls backward 2 times, so a step cannot be run again" in caplog.text
    assert guard.summary()["skipped"] == 1
    assert guard.incidents[0].diagnosis is None
    assert all_finite(trainer)


def test_a_step_that_never_asks_for_a_loss_is_refused_all_the_same(tmp_path: Path) -> None:
    class Own(Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            model.train()
            loss = model(**self._prepare_inputs(inputs)).loss
            self.accelerator.backward(loss)
            return loss.detach()

    options: dict[str, Any] = {"max_steps": STEPS, "kind": Own}
    trainer = tiny_trainer(tmp_path / "a", token_dataset(STEPS * 2, bad=[2 * BAD]), **options)
    guard = sg.attach(trainer)
    train(trainer)
    clean = token_dataset(STEPS * 2, without=[2 * BAD, 2 * BAD + 1])
    reference = train(tiny_trainer(tmp_path / "b", clean, stop_at=STEPS - 1, **options))
    assert guard.summary()["skipped"] == 1
    assert guard.incidents[0].diagnosis is None
    assert differences(state_of(trainer), state_of(reference)) == []


def test_a_fault_of_the_guards_own_does_not_stop_training_and_refusing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from steadygrad.integrations.hf import trainer_hooks as home

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(home, "captured", broken)
    trainer = poisoned(tmp_path)
    guard = sg.attach(trainer)
    train(trainer)
    assert guard.summary()["guard_faults"] == {"trainer": STEPS}
    assert guard.summary()["skipped"] == 1
    assert all_finite(trainer)


def test_a_guard_that_cannot_begin_lets_training_go_on_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from steadygrad.integrations.hf import trainer_guard as home

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(home, "LoopGuard", broken)
    trainer = poisoned(tmp_path)
    sg.attach(trainer)
    train(trainer)
    assert trainer.state.global_step == STEPS
    assert "internal error of steadygrad IE602 in attach (RuntimeError: a bug of ours)" in caplog.text
