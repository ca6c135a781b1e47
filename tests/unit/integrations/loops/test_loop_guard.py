"""A loop that somebody else owns and that can be run again, guarded through five calls."""

from __future__ import annotations

import copy
import math
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.integrations.loops import loop_guard
from steadygrad.integrations.loops.loop_guard import LoopGuard
from steadygrad.integrations.loops.repeatable_model_calls import ModelCalls

Batch = tuple[Tensor, Tensor]


class Net(nn.Module):
    """Running statistics and dropout: what a naive skip corrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.drop(torch.relu(self.norm(self.first(x)))))
        return out


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    return ((model(batch[0]) - batch[1]) ** 2).mean()


def made_batches(count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(6, 8, generator=generator), torch.randn(6, 1, generator=generator)) for _ in range(count)]


class Loop:
    """Somebody's training loop, with the five calls in it if it is given a guard's options."""

    def __init__(self, *, accumulate: int = 1, scaler: Any = None, can_run_again: bool = True, **options: Any) -> None:
        self.can_run_again = can_run_again
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.accumulate, self.scaler = accumulate, scaler
        self.guard = (
            LoopGuard(
                self.model, self.optimizer, squared_error, max_grad_norm=1.0, scheduler=self.scheduler, scaler=scaler,
                accumulate=accumulate, **options,
            )
            if options
            else None
        )  # fmt: skip

    def train(self, windows: list[list[Batch]]) -> None:
        for window in windows:
            for batch in window:
                if self.guard is not None:
                    self.guard.begin(batch)
                loss = squared_error(self.model, batch)
                divided = loss / self.accumulate if self.accumulate > 1 else loss
                (self.scaler.scale(divided) if self.scaler is not None else divided).backward()
                if self.guard is not None:
                    self.guard.seen(batch if self.can_run_again else None, {"loss": loss})
            self.clip()
            if self.guard is None or self.guard.commit(self.update):
                if self.guard is None:
                    self.update()
                self.scheduler.step()
            self.optimizer.zero_grad()

    def clip(self) -> None:
        if self.guard is not None:
            self.guard.before_clip()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def update(self) -> None:
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return {
            "weights": list(self.model.state_dict().values()),
            "moments": moments,
            "schedule": torch.tensor(self.scheduler.last_epoch),
            "rng": torch.get_rng_state(),
        }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, value in one.items():
        pairs = zip(value, other[name], strict=True) if isinstance(value, list) else [(value, other[name])]
        assert all(torch.equal(a, b) for a, b in pairs), name


def windows_of(batches: list[Batch], size: int) -> list[list[Batch]]:
    return [batches[start : start + size] for start in range(0, len(batches), size)]


def poisoned(batch: Batch) -> Batch:
    bad = copy.deepcopy(batch)
    bad[0][2, 3] = math.nan
    return bad


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("with_scaler", [False, True], ids=["plain", "scaled"])
def test_a_poisoned_window_leaves_no_trace(accumulate: int, with_scaler: bool) -> None:
    windows = windows_of(made_batches(11), accumulate)  # the last window is a short one
    reference = Loop(accumulate=accumulate, scaler=torch.amp.GradScaler("cpu") if with_scaler else None)
    reference.train([window for number, window in enumerate(windows) if number != 2])
    wanted = reference.state()
    bad = [list(window) for window in windows]
    bad[2][-1] = poisoned(bad[2][-1])
    guarded = Loop(
        accumulate=accumulate, scaler=torch.amp.GradScaler("cpu") if with_scaler else None, policy="balanced"
    )
    guarded.train(bad)
    assert_same(guarded.state(), wanted)
    assert guarded.guard is not None
    summary = guarded.guard.summary()
    assert (summary["steps"], summary["skipped"], summary["guard_faults"]) == (len(windows), 1, {})
    diagnosis = guarded.guard.incidents[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.cause is not None
    assert (diagnosis.cause.slug, diagnosis.rows) == ("bad_input", (2,))


@pytest.mark.parametrize("with_scaler", [False, True], ids=["plain", "scaled"])
def test_a_window_that_cannot_be_run_again_is_refused_without_a_trace_all_the_same(with_scaler: bool) -> None:
    windows = windows_of(made_batches(8), 2)
    reference = Loop(accumulate=2, scaler=torch.amp.GradScaler("cpu") if with_scaler else None)
    reference.train([window for number, window in enumerate(windows) if number != 2])
    wanted = reference.state()
    scaler = torch.amp.GradScaler("cpu") if with_scaler else None
    guarded = Loop(accumulate=2, scaler=scaler, policy="balanced", can_run_again=False)
    guarded.train([[poisoned(batch) for batch in w] if number == 2 else w for number, w in enumerate(windows)])
    assert_same(guarded.state(), wanted)
    assert guarded.guard is not None
    (incident,) = guarded.guard.incidents
    assert incident.diagnosis is None
    assert guarded.guard.summary()["guard_faults"] == {}


def test_a_healthy_loop_is_not_changed_by_a_bit() -> None:
    reference = Loop(accumulate=2)
    reference.train(windows_of(made_batches(12), 2))
    wanted = reference.state()
    guarded = Loop(accumulate=2, policy="balanced")
    guarded.train(windows_of(made_batches(12), 2))
    assert_same(guarded.state(), wanted)


def test_an_overflow_of_the_loss_scale_is_not_spoken_of_as_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    guarded = Loop(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**127), policy="balanced")
    inputs, targets = made_batches(1)[0]
    guarded.train([[(inputs, 1e3 * targets)]])
    assert guarded.guard is not None
    summary = guarded.guard.summary()
    assert (summary["overflows"], summary["skipped"]) == (1, 1)
    assert "refused" not in caplog.text


def test_weights_that_turn_bad_between_steps_are_rolled_back_and_the_good_batches_run_again() -> None:
    windows = windows_of(made_batches(12), 2)
    reference = Loop(accumulate=2)
    reference.train(windows)
    wanted = reference.state()
    guarded = Loop(accumulate=2, policy="balanced")
    guarded.train(windows[:3])
    with torch.no_grad():
        guarded.model.first.weight[0, 0] = math.nan
    guarded.train(windows[3:])
    assert guarded.guard is not None
    assert guarded.guard.summary()["rolled_back"] == 1
    assert guarded.guard.incidents[0].symptom == "nan_param"
    # The window that met the bad weights is run again with the others, so nothing is lost.
    for a, b in zip(guarded.state()["weights"], wanted["weights"], strict=True):
        assert torch.equal(a, b)


def test_a_capsule_is_kept_of_what_the_loop_ran(tmp_path: Path) -> None:
    windows = windows_of(made_batches(4), 1)
    loop = Loop(policy="balanced", run_dir=tmp_path / "run")
    loop.train([*windows, [poisoned(windows[0][0])]])
    assert loop.guard is not None
    loop.guard.close()
    (incident,) = loop.guard.incidents
    assert incident.capsule is not None
    assert (tmp_path / "run" / incident.capsule).exists()


def test_the_policy_halts_the_loop_and_no_bad_update_is_applied() -> None:
    loop = Loop(policy="balanced", diagnose="off")
    loop.train(windows_of(made_batches(3), 1))
    bad = poisoned(made_batches(1)[0])
    with pytest.raises(sg.TrainingHalted):
        loop.train([[bad]] * 60)
    assert all(bool(torch.isfinite(value).all()) for value in loop.state()["weights"])
    assert loop.guard is not None
    assert loop.guard.summary()["halted"]


@pytest.mark.parametrize("place", ["measure", "leave", "enter", "commit_outside"])
def test_an_internal_fault_leaves_a_loop_that_still_refuses_what_is_not_finite(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(policy="balanced", diagnose="off")
    windows = windows_of(made_batches(6), 1)
    loop.train(windows[:2])
    assert loop.guard is not None

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("planted")

    monkeypatch.setattr(loop.guard._engine, place, broken)
    loop.train([*windows[2:4], [poisoned(windows[4][0])], windows[5]])
    assert all(bool(torch.isfinite(value).all()) for value in loop.model.parameters())
    steps = [int(state["step"]) for state in loop.optimizer.state.values()]
    assert steps == [5] * len(steps)  # five of the six updates, each made once
    summary = loop.guard.summary()
    assert summary["standing_down"]
    assert summary["guard_faults"]


def test_the_graphs_of_calls_without_backward_are_freed() -> None:
    model, failed = nn.Linear(8, 1), list[Exception]()
    calls = ModelCalls(model, lambda: None, lambda: False, lambda given, output: False, failed.append)
    outputs = [weakref.ref(model(batch)) for batch, _ in made_batches(10)]
    assert sum(output() is not None for output in outputs) == 0
    call, given = calls.taken(model(torch.ones(2, 8)).sum())
    assert call is None
    assert given is not None
    loss = model(torch.ones(2, 8))[0, 0]
    assert calls.taken(loss)[1] is not None
    assert failed == []


@pytest.mark.parametrize("averaged", [False, True])
def test_what_becomes_of_a_moving_average_is_said_only_where_there_may_be_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, averaged: bool
) -> None:
    loop = Loop(policy="balanced")
    average = torch.optim.swa_utils.AveragedModel(loop.model) if averaged else None
    there = [*loop.model.modules(), *([average] if averaged else [])]  # other tests of this process leave models
    monkeypatch.setattr(loop_guard, "gc", SimpleNamespace(get_objects=lambda: there))
    assert "moving average" not in caplog.text
    *healthy, bad = made_batches(61)  # with snapshots of the guard's own
    bad[0].fill_(math.nan)
    loop.train([*([batch] for batch in healthy), [bad]])
    assert "refused" in caplog.text
    assert ("moving average" in caplog.text) is averaged
