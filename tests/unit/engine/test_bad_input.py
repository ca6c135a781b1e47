"""Mistakes in the call: one clear sentence each, with what to do instead. The words are read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from specimens import batches, make_guard
from torch import Tensor, nn, optim

import steadygrad as sg
from steadygrad.records.errors import ClosedError, JournalError, SteadyError, UsageError


def make() -> tuple[nn.Linear, optim.Optimizer]:
    model = nn.Linear(8, 1)
    return model, optim.AdamW(model.parameters(), lr=0.01, fused=True)


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda loss: loss.expand(6), r"The loss is a tensor of shape \(6,\), not a scalar. Reduce it"),
        (lambda loss: {"ce": loss}, r"a mapping with no 'loss' \(it has: ce\). Return the total under the key 'loss'"),
        (lambda loss: {}, r"a mapping with no 'loss' \(it has: nothing\)"),
        (lambda loss: {"loss": loss, "kd": loss.expand(2)}, r"The loss term 'kd' is a tensor of shape \(2,\)"),
        (lambda loss: {"loss": loss, "kd": 0.5}, "The loss term 'kd' is float, not a scalar"),
        (lambda loss: loss.item(), "loss_fn returned float. Return the loss as a scalar tensor"),
        (lambda loss: (loss, loss), "loss_fn returned tuple"),
    ],
)
@pytest.mark.parametrize("mode", ["now", "late"])
def test_what_loss_fn_may_not_return(returned: Any, words: str, mode: str) -> None:
    model, optimizer = make()
    wrong: list[bool] = []

    def sometimes(model: nn.Module, batch: Tensor) -> Any:
        loss = loss_fn(model, batch)
        return returned(loss) if wrong else loss

    with make_guard(model, optimizer, sometimes, settle=mode) as guard:
        guard.step(batches(1)[0])
        wrong.append(True)
        with pytest.raises(UsageError, match=words):
            guard.step(batches(1)[0])
        wrong.clear()
        assert guard.step(batches(1)[0]).applied
        assert guard.summary()["guard_faults"] == {}


def test_a_scalar_in_a_box_is_a_scalar() -> None:
    model, optimizer = make()
    with make_guard(model, optimizer, lambda m, b: loss_fn(m, b).reshape(1, 1)) as guard:
        assert guard.step(batches(1)[0]).applied


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "brave"}, r"There is no policy 'brave'. Pass one of balanced, observe, ultra_conservative"),
        ({"precision": "fp8"}, r"precision must be one of 'fp32', 'bf16', 'fp16'; got 'fp8'"),
        ({"accumulate": 0}, r"accumulate counts micro-batches per update and must be at least 1; got 0"),
        ({"accumulate": 2.5}, r"accumulate .* got 2.5"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm must be above 0, or None to measure without clipping; got 0.0"),
        ({"max_grad_norm": math.nan}, r"max_grad_norm must be above 0"),
        ({"clip": "hard"}, r"clip must be one of 'exact', 'folded'; got 'hard'"),
        ({"settle": "never"}, r"settle must be one of 'auto', 'late', 'now'"),
        ({"snapshots": "disk"}, r"snapshots must be one of"),
        ({"diagnose": "yes"}, r"diagnose must be one of"),
        ({"scaler": "auto"}, r"scaler must be a torch.amp.GradScaler, got str"),
        ({"checkpoint_every": 10}, r"checkpoint_every needs a run_dir"),
        ({"checkpoint_every": 0, "run_dir": "here"}, r"checkpoint_every .* must be at least 1"),
        ({"keep_checkpoints": 0, "run_dir": "here"}, r"keep_checkpoints .* must be at least 1; got None and 0"),
        ({"ema": 0.999}, r"ema must have update_parameters\(model\) or update\(\), or be callable; got float"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    model, optimizer = make()
    if "run_dir" in options:
        options = {**options, "run_dir": tmp_path}
    with pytest.raises(UsageError, match=words) as refused:
        make_guard(model, optimizer, loss_fn, **options)
    assert isinstance(refused.value, ValueError)
    # Nothing is left behind: the same optimizer and directory can be used at once, rightly.
    if "run_dir" in options:
        options = {"run_dir": tmp_path, "checkpoint_every": 1}
        with make_guard(model, optimizer, loss_fn, **options) as guard:
            assert guard.step(batches(1)[0]).applied


def test_a_plateau_schedule_is_refused_with_a_way_out() -> None:
    model, optimizer = make()
    plateau = optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(UsageError, match=r"needs a validation metric.*call plateau.step\(metric\) yourself"):
        sg.Guard(model, optimizer, loss_fn, scheduler=plateau)


def test_an_optimizer_of_another_model_is_refused() -> None:
    model, _ = make()
    _, other = make()
    with pytest.raises(
        UsageError, match=r"None of the optimizer's parameters belong to the model.*before the model was"
    ):
        sg.Guard(model, other, loss_fn)


def test_two_guards_on_one_optimizer_are_refused_until_the_first_is_closed() -> None:
    model, optimizer = make()
    first = make_guard(model, optimizer, loss_fn)
    with pytest.raises(UsageError, match=r"This AdamW is already guarded.*close\(\) the first one"):
        make_guard(model, optimizer, loss_fn)
    first.close()
    with make_guard(model, optimizer, loss_fn) as second:
        assert second.step(batches(1)[0]).applied


def test_a_closed_guard_says_so() -> None:
    model, optimizer = make()
    guard = make_guard(model, optimizer, loss_fn)
    guard.step(batches(1)[0])
    guard.close()
    before = model.weight.detach().clone()
    with pytest.raises(ClosedError, match=r"This guard is closed, so the batch was not trained on. Make a new Guard"):
        guard.step(batches(1)[0])
    assert torch.equal(before, model.weight)
    assert guard.summary()["applied"] == 1


def test_a_run_directory_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    model, optimizer = make()
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(JournalError, match="file") as refused:
        make_guard(model, optimizer, loss_fn, run_dir=tmp_path / "file" / "run")
    assert isinstance(refused.value, SteadyError)
    assert "\n" not in str(refused.value)
    with make_guard(model, optimizer, loss_fn, run_dir=tmp_path / "run") as guard:
        assert guard.step(batches(1)[0]).applied


@pytest.mark.parametrize(
    ("model", "optimizer", "loss", "words"),
    [
        (lambda x: x, None, loss_fn, "model must be a torch.nn.Module, got function"),
        (None, None, "mse", "loss_fn must be a function loss_fn"),
        (None, "adam", loss_fn, "Guard needs a torch.optim.Optimizer, got str"),
        (None, [], loss_fn, "Guard was given no optimizer"),
    ],
)
def test_the_three_things_a_guard_needs(model: Any, optimizer: Any, loss: Any, words: str) -> None:
    good_model, good_optimizer = make()
    with pytest.raises(UsageError, match=words):
        sg.Guard(
            good_model if model is None else model, good_optimizer if optimizer is None else optimizer, loss
        )  # fmt: skip
