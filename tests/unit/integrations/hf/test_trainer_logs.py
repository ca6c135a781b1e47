"""What a guarded Trainer logs is what happened."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
from trainer_specimens import logged, tiny_trainer, token_dataset, train
from transformers import Trainer

import steadygrad as sg

STEPS = 8
BAD = 3


def poisoned(path: Path, **arguments: Any) -> Trainer:
    return tiny_trainer(path, token_dataset(STEPS * 2, bad=[2 * BAD]), max_steps=STEPS, **arguments)


def test_without_a_guard_the_filter_shows_a_dead_run_as_a_number(tmp_path: Path) -> None:
    """Why this exists: the trainer's own log of a run whose weights are NaN holds no NaN loss."""
    trainer = train(poisoned(tmp_path))
    assert all(math.isfinite(loss) for loss in logged(trainer, "loss"))


def test_the_refused_step_shows_its_nan_and_the_next_one_its_number(tmp_path: Path) -> None:
    trainer = poisoned(tmp_path)
    sg.attach(trainer, diagnose="off", log_metrics=True)
    train(trainer)
    finite = [math.isfinite(loss) for loss in logged(trainer, "loss")]
    assert finite == [step != BAD for step in range(STEPS)]
    assert logged(trainer, "steady/skipped") == [0] * BAD + [1] * (STEPS - BAD)
    assert logged(trainer, "steady/refused_fraction") == [float(step == BAD) for step in range(STEPS)]


def test_an_interval_shows_the_share_refused_and_the_loss_of_what_was_applied(tmp_path: Path) -> None:
    each = poisoned(tmp_path / "each")
    sg.attach(each, diagnose="off")
    losses = logged(train(each), "loss")
    trainer = poisoned(tmp_path / "four", logging_steps=4)
    sg.attach(trainer, diagnose="off", log_metrics=True)
    train(trainer)
    assert logged(trainer, "steady/refused_fraction") == [0.25, 0.0]
    assert logged(trainer, "steady/skipped") == [1, 1]
    first, second = logged(trainer, "loss")
    assert math.isnan(first)
    assert second == pytest.approx(sum(losses[4:]) / 4, rel=1e-6)
    landed = [loss for step, loss in enumerate(losses[:4]) if step != BAD]
    assert logged(trainer, "steady/loss") == [pytest.approx(sum(landed) / 3, rel=1e-6)]


def test_the_final_train_loss_is_the_mean_over_what_was_trained_on(tmp_path: Path) -> None:
    trainer = poisoned(tmp_path, logging_steps=3)
    sg.attach(trainer, diagnose="off")
    train(trainer)
    each = poisoned(tmp_path / "each")
    sg.attach(each, diagnose="off")
    losses = [loss for loss in logged(train(each), "loss") if math.isfinite(loss)]
    assert logged(trainer, "train_loss") == [pytest.approx(sum(losses) / len(losses), rel=1e-6)]


@pytest.mark.parametrize("filtered", [True, False])
def test_the_log_is_true_with_and_without_the_trainers_filter(filtered: bool, tmp_path: Path) -> None:
    trainer = poisoned(tmp_path, logging_nan_inf_filter=filtered)
    guard = sg.attach(trainer, diagnose="off")
    train(trainer)
    assert trainer.args.logging_nan_inf_filter is filtered
    guard.close()
    assert trainer.args.logging_nan_inf_filter is filtered
    assert [math.isfinite(loss) for loss in logged(trainer, "loss")] == [step != BAD for step in range(STEPS)]
    assert not any(key.startswith("steady/") for row in trainer.state.log_history for key in row)


def test_a_healthy_trainer_logs_what_it_logs_alone_and_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def trained(name: str, *, guarded: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        trainer = tiny_trainer(tmp_path / name, token_dataset(STEPS * 2), max_steps=STEPS)
        before = trainer.args.to_dict()
        if guarded:
            sg.attach(trainer, run_dir=tmp_path / "run")
        train(trainer)
        changed = {key: value for key, value in trainer.args.to_dict().items() if value != before[key]}
        return [_without_speed(row) for row in trainer.state.log_history], changed

    alone = trained("alone", guarded=False)
    capfd.readouterr()
    with caplog.at_level(logging.WARNING, logger="steadygrad"):
        assert trained("guarded", guarded=True) == alone
    assert [record.getMessage() for record in caplog.records if record.name.startswith("steadygrad")] == []
    assert "steady" not in "".join(capfd.readouterr())


def _without_speed(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.endswith(("_runtime", "_per_second"))}


def test_the_journal_has_the_loss_in_the_trainers_own_size(tmp_path: Path) -> None:
    """With accumulation a micro-batch's loss is a share of the step's; the journal shows the step's."""
    import pyarrow as pa

    trainer = tiny_trainer(tmp_path / "out", token_dataset(4 * STEPS), max_steps=STEPS, gradient_accumulation_steps=2)
    guard = sg.attach(trainer, run_dir=tmp_path / "run")
    train(trainer)
    guard.close()
    (segment,) = (tmp_path / "run" / "steps").glob("*.arrow")
    with pa.ipc.open_stream(segment) as stream:
        rows = stream.read_all().to_pylist()
    assert [row["loss"] for row in rows] == pytest.approx(logged(trainer, "loss"), rel=1e-6)
    assert [row["grad_norm"] for row in rows] == pytest.approx(logged(trainer, "grad_norm"), rel=1e-6)
    assert [row["lr"] for row in rows] == pytest.approx(logged(trainer, "learning_rate"), rel=1e-9)
