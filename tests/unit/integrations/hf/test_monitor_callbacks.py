"""The two plain callbacks: what they count, what they print, and that they change nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_specimens import all_finite, differences, state_of, tiny_trainer, token_dataset, train

import steadygrad as sg
from steadygrad import UsageError

STEPS = 6
BAD_STEP = 3  # counted from one


def poisoned(path: Path, *callbacks: Any, **arguments: Any) -> Any:
    trainer = tiny_trainer(path, token_dataset(2 * STEPS, bad=[2 * BAD_STEP - 1]), max_steps=STEPS, **arguments)
    for callback in callbacks:
        trainer.add_callback(callback)
    return trainer


def healthy(path: Path, *callbacks: Any, **arguments: Any) -> Any:
    trainer = tiny_trainer(path, token_dataset(2 * STEPS), **({"max_steps": STEPS} | arguments))
    for callback in callbacks:
        trainer.add_callback(callback)
    return trainer


def test_norms_are_those_the_trainer_measures_before_clipping(tmp_path: Path) -> None:
    monitor = sg.GradientMonitorCallback(log_every_n_steps=STEPS)
    trainer = train(healthy(tmp_path, monitor))
    norms = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
    assert len(norms) == STEPS
    assert max(norms) > 1.0  # some were clipped afterwards, or this proves nothing
    (report,) = monitor.reports
    assert report.max_norm == pytest.approx(max(norms), rel=1e-5)
    assert report.min_norm == pytest.approx(min(norms), rel=1e-5)
    assert report.mean_norm == pytest.approx(sum(norms) / STEPS, rel=1e-5)
    assert (report.num_nan, report.num_inf, report.bad) == (0, 0, ())


def test_a_report_prints_mean_max_min_and_both_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(healthy(tmp_path, sg.GradientMonitorCallback(log_every_n_steps=3)))
    printed = capsys.readouterr().out
    assert printed.count("gradient norms before clipping") == STEPS // 3
    for word in ("[step 3]", "[step 6]", "mean:", "max:", "min:", "NaN count: 0, Inf count: 0"):
        assert word in printed


def test_a_bad_gradient_is_told_at_its_step_with_the_parameters_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = sg.GradientMonitorCallback(log_every_n_steps=BAD_STEP)
    trainer = train(poisoned(tmp_path, monitor))
    printed = capsys.readouterr().out
    assert f"[step {BAD_STEP}] NaN in the gradients of" in printed
    assert "transformer.wte.weight (NaN)" in printed
    assert "  total norm: nan (" in printed
    assert "sg.attach(trainer) refuses it" in printed
    first = monitor.reports[0]
    assert first.num_nan == 1
    assert all(math.isfinite(norm) for norm in (first.mean_norm, first.max_norm, first.min_norm) if norm is not None)
    assert not all_finite(trainer)  # it only looks


def test_names_that_stay_bad_are_listed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(poisoned(tmp_path, sg.GradientMonitorCallback()))  # nobody refuses it: every later step is NaN as well
    printed = capsys.readouterr().out
    assert printed.count("transformer.wte.weight (NaN)") == 1
    assert printed.count("those named before") == STEPS - BAD_STEP


def test_beside_a_guard_the_alarm_does_not_say_that_the_update_is_applied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = poisoned(tmp_path, sg.GradientMonitorCallback())
    with sg.attach(trainer, diagnose="off"):
        train(trainer)
    printed = capsys.readouterr().out
    assert "[step 3] NaN in the gradients of" in printed
    assert "judges this update before it is applied" in printed
    assert "about to apply it" not in printed
    assert all_finite(trainer)


def test_one_bad_gradient_is_not_spread_over_all_names_by_clipping(tmp_path: Path) -> None:
    monitor = sg.GradientMonitorCallback(log_every_n_steps=1)
    trainer = healthy(tmp_path, monitor, max_grad_norm=1.0)
    parameter = trainer.model.transformer.h[1].mlp.c_fc.weight
    parameter.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([0]), math.inf))
    train(trainer)
    assert monitor.reports[0].bad == (("transformer.h.1.mlp.c_fc.weight", "Inf"),)
    assert monitor.reports[0].num_inf == 1


def test_halting_stops_with_the_weights_from_before_the_bad_step(tmp_path: Path) -> None:
    monitor = sg.GradientMonitorCallback(halt_on_nan=True)
    trainer = train(poisoned(tmp_path / "a", monitor))
    assert trainer.state.global_step == BAD_STEP
    reference = train(stopped(tmp_path / "b", BAD_STEP - 1))
    mine, theirs = state_of(trainer), state_of(reference)
    assert differences(mine["weights"], theirs["weights"]) == []
    assert differences(mine["moments"], theirs["moments"]) == []


def stopped(path: Path, step: int) -> Any:
    return tiny_trainer(path, token_dataset(2 * STEPS), max_steps=STEPS, stop_at=step)


def test_both_monitors_leave_a_healthy_run_bit_identical(tmp_path: Path) -> None:
    monitors = (sg.GradientMonitorCallback(), sg.ActivationMonitorCallback(check_every_n_steps=2))
    watched = train(healthy(tmp_path / "a", *monitors))
    plain = train(healthy(tmp_path / "b"))
    assert differences(state_of(watched), state_of(plain)) == []


def test_a_schedule_of_checks_is_kept(tmp_path: Path) -> None:
    activations = sg.ActivationMonitorCallback(check_every_n_steps=2)
    gradients = sg.GradientMonitorCallback(check_every_n_steps=4, log_every_n_steps=2)
    train(healthy(tmp_path, activations, gradients))
    assert [report.step for report in activations.reports] == [2, 4, 6]
    assert [report.mean_norm is None for report in gradients.reports] == [True, False, True]


def test_activations_are_measured_as_torch_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = sg.ActivationMonitorCallback(check_every_n_steps=1)
    trainer = healthy(tmp_path, monitor, max_steps=1)
    seen: list[torch.Tensor] = []
    handle = trainer.model.transformer.h[0].mlp.register_forward_hook(lambda m, i, o: seen.append(o.detach()))
    train(trainer)
    handle.remove()
    row = next(row for row in monitor.reports[0].rows if row.module == "transformer.h.0.mlp")
    assert (row.num_nan, row.num_inf, row.dtype) == (0, 0, "float32")
    assert row.absmax == pytest.approx(float(seen[0].abs().max()))
    assert row.mean_abs == pytest.approx(float(seen[0].abs().mean()), rel=1e-5)
    assert "NaN count: 0, Inf count: 0" in capsys.readouterr().out


def test_modules_with_bad_activations_come_first(tmp_path: Path) -> None:
    monitor = sg.ActivationMonitorCallback(check_every_n_steps=BAD_STEP)
    train(poisoned(tmp_path, monitor))
    report = monitor.reports[0]
    assert report.num_nan > 0
    assert report.rows[0].num_nan + report.rows[0].num_inf > 0
    assert any(row.module == "transformer.wte" and row.num_inf for row in report.rows)


def test_no_hook_is_left_on_the_model(tmp_path: Path) -> None:
    trainer = healthy(tmp_path, sg.GradientMonitorCallback(), sg.ActivationMonitorCallback(check_every_n_steps=1))
    before = sum(len(module._forward_hooks) for module in trainer.model.modules())
    train(trainer)
    assert sum(len(module._forward_hooks) for module in trainer.model.modules()) == before
    assert not any(p._post_accumulate_grad_hooks for p in trainer.model.parameters())


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_schedule_that_is_no_count_of_steps_is_one_sentence(value: Any) -> None:
    with pytest.raises(UsageError, match="check_every_n_steps counts steps and must be a whole number of at least 1"):
        sg.GradientMonitorCallback(check_every_n_steps=value)
    with pytest.raises(UsageError, match="check_every_n_steps counts steps"):
        sg.ActivationMonitorCallback(check_every_n_steps=value)
