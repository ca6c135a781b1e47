"""Whatever goes wrong in a diagnosis is an answer, "not diagnosed: why", and training goes on with the same bits."""

from __future__ import annotations

import gc
import importlib
import logging
import time
import weakref
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from steadygrad import Guard
from steadygrad.diagnosis.isolation import device_memory
from steadygrad.diagnosis.isolation.device_memory import forget, is_out_of_memory
from steadygrad.diagnosis.isolation.resource_limits import (
    NotRestored,
    OutOfTime,
    ResourceLimits,
    fits,
    for_incident,
    isolated,
    limited,
    limits,
)
from steadygrad.engine.record.diagnosis_time import DiagnosisTime
from steadygrad.records import Diagnosis, StepRecord
from steadygrad.records.rerun_flag import rerunning

ANSWER = Diagnosis(symptom="nan_loss", phase="loss", because="found")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batches(bad: int | None = 4) -> list[Tensor]:
    torch.manual_seed(1)
    made = [torch.randn(6, 4) for _ in range(8)]
    if bad is not None:
        made[bad][2, 1] = float("nan")
    return made


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).pow(2).mean()  # type: ignore[no-any-return]


def trained(diagnose: str = "auto", model: nn.Module | None = None, loss: Any = loss_fn) -> tuple[Guard, nn.Module]:
    model = model or net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, loss, diagnose=diagnose) as guard:
        for batch in batches():
            guard.step(batch)
    return guard, model


def same_bits(model: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


# -- one way to give up


def test_an_answer_comes_back_as_it_is() -> None:
    assert isolated("nan_loss", lambda depth: ANSWER, depth="full") == ANSWER


def test_an_exception_is_an_answer_in_one_line_and_shows_no_traceback(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(depth: str) -> Diagnosis:
        raise ValueError("no such thing\nand a second line")

    with caplog.at_level(logging.INFO, logger="steadygrad"):
        found = isolated("nan_loss", broken, depth="full")
    assert found.cause is None
    assert found.because == "not diagnosed: the diagnosis itself failed (ValueError: no such thing)"
    assert caplog.records == []
    assert capsys.readouterr().err == ""


def test_an_interruption_by_the_user_is_not_swallowed() -> None:
    def interrupted(depth: str) -> Diagnosis:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        isolated("nan_loss", interrupted, depth="full")


def test_a_state_that_cannot_be_restored_is_raised_and_not_reported_as_an_answer() -> None:
    def lost(depth: str) -> Diagnosis:
        raise NotRestored("gone")

    with pytest.raises(NotRestored):
        isolated("nan_loss", lost, depth="full")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_out_of_memory_is_tried_again_with_less_and_then_given_up(error: Exception) -> None:
    tried: list[tuple[str, bool]] = []

    def hungry(depth: str) -> Diagnosis:
        tried.append((depth, limits().lean))
        raise error

    assert isolated("nan_loss", hungry, depth="full").because == "not diagnosed: out of memory"
    assert tried == [("full", False), ("origin", True)]

    def modest(depth: str) -> Diagnosis:
        if depth == "full":
            raise error
        return ANSWER

    found = isolated("nan_loss", modest, depth="full")
    assert found.because == "found"
    assert any("out of memory" in note for note in found.notes)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))
    assert not is_out_of_memory(ValueError("out of memory"))
    wrapped = RuntimeError("in the user's code")
    wrapped.__cause__ = MemoryError()
    assert is_out_of_memory(wrapped)


def test_what_an_exception_held_is_free_when_the_second_attempt_begins() -> None:
    held: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []

    def hungry(depth: str) -> Diagnosis:
        if depth == "full":
            activation = torch.ones(1000)
            held.append(weakref.ref(activation))
            raise torch.OutOfMemoryError("CUDA out of memory")
        alive.append(held[0]() is not None)
        return ANSWER

    isolated("nan_loss", hungry, depth="full")
    assert alive == [False]


def test_forgetting_an_exception_frees_its_frames_and_those_of_its_cause() -> None:
    def inner() -> None:
        activation = torch.ones(3)
        references.append(weakref.ref(activation))
        raise MemoryError

    def outer() -> None:
        other = torch.ones(3)
        references.append(weakref.ref(other))
        try:
            inner()
        except MemoryError as error:
            raise RuntimeError("outer") from error

    references: list[weakref.ref[Tensor]] = []
    kept: list[BaseException] = []
    try:
        outer()
    except RuntimeError as error:
        kept.append(error)
    assert all(reference() is not None for reference in references)
    forget(kept[0])
    gc.collect()
    assert all(reference() is None for reference in references)


def test_everything_inside_counts_as_a_rerun() -> None:
    seen: list[bool] = []

    def look(depth: str) -> Diagnosis:
        seen.append(rerunning())
        return ANSWER

    isolated("nan_loss", look, depth="full")
    assert seen == [True]
    assert not rerunning()


# -- time


@pytest.fixture
def usual_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEADYGRAD_DIAGNOSIS_SECONDS")


def steps_of(seconds: float, number: int = 8) -> list[StepRecord]:
    return [
        StepRecord(run="r", step=i, time=i * seconds, loss=1.0, grad_norm=1.0, applied=i != 3) for i in range(number)
    ]


@pytest.mark.usefixtures("usual_limit")
@pytest.mark.parametrize(
    ("plain", "most"), [(0.0, 30.0), (0.001, 30.0), (2.0, 60.0), (1000.0, 300.0)]
)  # seconds of a plain step, seconds for a diagnosis
def test_a_diagnosis_has_half_a_minute_or_thirty_plain_steps_up_to_five_minutes(plain: float, most: float) -> None:
    now = [0.0]
    account = DiagnosisTime(lambda: now[0])
    now[0] = 1e6
    assert account.allowed(steps_of(plain)) == most


@pytest.mark.usefixtures("usual_limit")
def test_without_a_step_before_it_a_diagnosis_has_half_a_minute() -> None:
    assert DiagnosisTime().allowed([]) == 30.0


@pytest.mark.usefixtures("usual_limit")
def test_all_diagnoses_of_a_run_take_a_minute_and_a_tenth_of_its_time() -> None:
    now = [0.0]
    account = DiagnosisTime(lambda: now[0])
    for _ in range(2):
        with account.counted(), account.counted():  # one inside of the other counts once
            now[0] += 33.0
    assert account.allowed([]) == pytest.approx(60.0 + 6.6 - 66.0)
    with account.counted():
        now[0] += 10.0
    assert account.allowed([]) == 0.0
    now[0] += 1000.0
    assert account.allowed([]) == 30.0


def test_the_seconds_of_a_diagnosis_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADYGRAD_DIAGNOSIS_SECONDS", "7.5")
    assert DiagnosisTime().allowed(steps_of(1000.0)) == 7.5
    monkeypatch.setenv("STEADYGRAD_DIAGNOSIS_SECONDS", "soon")
    assert DiagnosisTime().allowed([]) == 30.0


@pytest.mark.usefixtures("usual_limit")
def test_all_that_is_done_for_one_incident_has_one_limit() -> None:
    log: Any = SimpleNamespace(recent=[], diagnosis_time=DiagnosisTime())
    with for_incident(log) as own:
        assert own.seconds == 30.0
        own.started -= 31.0
        with for_incident(log) as inner:
            assert inner is own
        found = isolated("nan_loss", lambda _: limits().check() or ANSWER, depth="full")
        assert found.because == "not diagnosed: time limit of 30 s reached"
        limits().check()
        raise AssertionError("the limit is not raised beyond the incident, and ends what is inside")


def test_outside_of_a_diagnosis_there_is_no_limit() -> None:
    assert limits().seconds == float("inf")
    with limited(ResourceLimits(seconds=0.0)) as own:
        time.sleep(0.002)
        assert limits() is own
        with pytest.raises(OutOfTime):
            limits().check()


@pytest.fixture
def slow_replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every replay counts one second, and thirty of them are allowed."""
    isolation = importlib.import_module("steadygrad.diagnosis.isolation.resource_limits")
    clock = [0]

    def check(self: ResourceLimits) -> None:
        clock[0] += 1
        self.started = time.monotonic() - clock[0]
        if clock[0] > allowed[0]:
            raise OutOfTime

    allowed = [0]
    monkeypatch.setattr(isolation.ResourceLimits, "check", check)
    return allowed


@pytest.mark.parametrize("most", [0, 1, 2, 3, 5, 8, 12, 16, 20, 30])
def test_a_diagnosis_that_runs_out_of_time_says_what_it_knows_and_what_was_not_tried(
    slow_replays: list[int], most: int
) -> None:
    plain, expected = trained("off")
    slow_replays[0] = most
    guard, model = trained()
    assert same_bits(model, expected)
    assert guard.summary()["skipped"] == plain.summary()["skipped"] == 1
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis is not None
    said = [diagnosis.because, *diagnosis.notes]
    if most == 0:
        assert diagnosis.because == "not diagnosed: time limit of 300 s reached"
        assert diagnosis.cause is None
    elif most <= 12:
        assert diagnosis.cause is not None
        assert any("time limit of 300 s reached" in line for line in said)
    assert not diagnosis.rows_coupled
    assert all(trial.steps_followed or not trial.verified for trial in diagnosis.trials)


# -- memory


class Hungry(nn.Module):
    """A model that runs out of memory in every pass with gradients while something is run again."""

    def __init__(self, after: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(4, 1)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        if rerunning() and PASSES["left"] <= 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        if rerunning():
            PASSES["left"] -= 1
        out: Tensor = self.inner(x)
        return out


PASSES = {"left": 0}


@pytest.mark.parametrize("passes", [0, 1, 2, 3, 5, 8, 13, 21, 40])
def test_a_run_that_has_no_memory_for_a_diagnosis_goes_on_from_the_same_bits(passes: int) -> None:
    PASSES["left"] = 10**6
    _, expected = trained("off", Hungry(0))
    PASSES["left"] = passes
    guard, model = trained("auto", Hungry(0))
    assert same_bits(model, expected)
    assert guard.summary()["skipped"] == 1
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis is not None
    if passes == 0:
        assert diagnosis.because == "not diagnosed: out of memory"
    assert not diagnosis.rows_coupled
    assert "Tried to allocate" not in str(diagnosis)


def test_no_activation_of_a_replay_is_alive_after_the_diagnosis() -> None:
    made = Mock()  # a list would be as it was before the diagnosis, and a queue may not be used

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        out: Tensor = model(batch)
        if rerunning():
            made(weakref.ref(out))
        return out.pow(2).mean()

    guard, _ = trained("auto", loss=loss)
    alive = [each for (each,), _ in made.call_args_list]
    assert len(alive) > 5
    gc.collect()
    assert not [reference for reference in alive if reference() is not None]
    assert guard.incidents[0].diagnosis is not None


def test_a_trace_keeps_no_activation_alive_while_it_runs() -> None:
    trace = importlib.import_module("steadygrad.diagnosis.trace.tracer")
    model = net()
    tracer = trace.Tracer(model)
    with tracer.tracing(), torch.no_grad():
        hidden = torch.ones(3, 4) * 2
        reference = weakref.ref(hidden)
        del hidden
        assert reference() is None


def test_with_little_memory_the_copy_of_the_state_lies_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.ones(100), torch.ones(100)]
    assert fits(tensors)
    monkeypatch.setattr(device_memory, "spare_memory", lambda device: 1599)
    assert not fits(tensors)
    monkeypatch.setattr(device_memory, "spare_memory", lambda device: 1600)
    assert fits(tensors)
    with limited(ResourceLimits(lean=True)):
        assert not fits(tensors)


# -- exceptions


@pytest.mark.parametrize(
    "place",
    ["trace.tracer.op_name", "locate.examine.find_bad_origin", "causes.collect_evidence.locate", "diagnose.name_cause"],
)
def test_a_bug_of_ours_anywhere_in_a_diagnosis_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    _, expected = trained("off")
    module, _, name = place.rpartition(".")

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("a bug of ours")

    monkeypatch.setattr(importlib.import_module(f"steadygrad.diagnosis.{module}"), name, broken)
    with caplog.at_level(logging.INFO, logger="steadygrad"):
        guard, model = trained()
    assert same_bits(model, expected)
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.cause is None
    assert not any(record.exc_info for record in caplog.records)


def test_a_loss_that_raises_when_it_is_run_again_is_an_answer() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        if rerunning():
            raise RuntimeError("this loss can be computed once")
        return loss_fn(model, batch)

    guard, model = trained("auto", loss=loss)
    _, expected = trained("off")
    assert same_bits(model, expected)
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis is not None
    assert "this loss can be computed once" in diagnosis.because
