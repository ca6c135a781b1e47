"""A loss_fn may take its batch apart: what must be run again is run as it was given. What it raises stays its own."""

from __future__ import annotations

import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from specimens import SKIP_ONLY, batches, make_guard, same_bits
from torch import Tensor, nn, optim

import steadygrad as sg
from steadygrad.journal import read_events

MODES = ["now", "late"]


def make() -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 1))
    return model, optim.AdamW(model.parameters(), lr=0.01, fused=True)


def popping(model: nn.Module, batch: Any) -> Tensor:
    labels = batch.pop("labels")
    return (model(batch["x"]) - labels).pow(2).mean()


def writing(model: nn.Module, batch: Any) -> Tensor:
    batch["x"].mul_(0.5)
    return (model(batch["x"]) - batch["labels"]).pow(2).mean()


def mapping(batch: Tensor, kind: Any = dict) -> Any:
    return kind({"x": batch[:, :8].clone(), "labels": batch[:, 8:].clone()})


def nan_batch() -> Tensor:
    bad = batches(1)[0].clone()
    bad[1, 2] = math.nan
    return bad


def run(
    loss_fn: Any, data: list[Tensor], mode: str, *, poke: int | None = None, kind: Any = dict, **options: Any
) -> Any:
    model, optimizer = make()
    with make_guard(model, optimizer, loss_fn, settle=mode, policy=SKIP_ONLY.but(snapshot_every=4), **options) as guard:
        for number, batch in enumerate(data):
            if number == poke:
                guard.settle()
                model[0].weight.data[0, 0] = math.nan
            guard.step(mapping(batch, kind))
        summary = guard.summary()
    assert summary["guard_faults"] == {}
    return dict(model.state_dict()), summary


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss_fn", [popping, writing])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_behind_a_refused_one_are_run_again_as_they_were(loss_fn: Any, mode: str, accumulate: int) -> None:
    good = batches(12)
    expected, _ = run(loss_fn, good, mode, accumulate=accumulate)
    for where in (3, 4, 9):
        got, summary = run(loss_fn, [*good[:where], nan_batch(), *good[where:]], mode, accumulate=accumulate)
        assert summary["skipped"] == 1
        assert same_bits(expected, got) == [], where


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss_fn", [popping, writing])
def test_a_rollback_runs_them_again_as_they_were(loss_fn: Any, mode: str) -> None:
    good = batches(12)
    expected, _ = run(loss_fn, good, mode)
    got, summary = run(loss_fn, good, mode, poke=10)
    assert summary["rolled_back"] == 1
    assert same_bits(expected, got) == []


def test_a_mapping_of_another_type_stays_of_that_type_when_run_again() -> None:
    class Attributes(OrderedDict[str, Tensor]):
        def __getattr__(self, name: str) -> Tensor:
            return self[name]

    def by_attribute(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch.x) - batch.pop("labels")).pow(2).mean()

    good = batches(8)
    expected, _ = run(by_attribute, good, "late", kind=Attributes)
    got, _ = run(by_attribute, [*good[:5], nan_batch(), *good[5:]], "late", kind=Attributes)
    assert same_bits(expected, got) == []


def test_what_loss_fn_puts_into_its_batch_is_there_for_the_user() -> None:
    def telling(model: nn.Module, batch: Any) -> Tensor:
        batch["prediction"] = model(batch["x"])
        return (batch["prediction"] - batch["labels"]).pow(2).mean()

    model, optimizer = make()
    with make_guard(model, optimizer, telling) as guard:
        batch = mapping(batches(1)[0])
        guard.step(batch)
        assert batch["prediction"].shape == (6, 1)


def test_a_batch_taken_apart_is_whole_again_when_the_guard_stands_down(monkeypatch: pytest.MonkeyPatch) -> None:
    from steadygrad.engine.step.step_row import RowReader

    def breaks(*_: Any, **__: Any) -> None:
        raise RuntimeError("planted")

    model, optimizer = make()
    with make_guard(model, optimizer, popping) as guard:
        guard.step(mapping(batches(1)[0]))
        monkeypatch.setattr(RowReader, "pack", breaks)
        assert guard.step(mapping(batches(1)[0])).applied
        assert guard.summary()["standing_down"]


def test_writing_into_the_batch_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(writing, batches(6), "late", run_dir=tmp_path)
    assert caplog.text.count("loss_fn writes into its batch") == 1
    assert [event.data["batch_key"] for event in read_events(tmp_path) if event.kind == "batch_written"] == ["0"]


def test_what_loss_fn_raises_keeps_its_cause_and_its_context() -> None:
    model = nn.Linear(2, 1)
    told: list[BaseException] = []

    def loss_fn(_model: nn.Module, how: str) -> Tensor:
        if how == "alone":
            raise RuntimeError(how)
        try:
            raise KeyError("first")
        except KeyError as first:
            if how == "while":
                raise RuntimeError(how)  # noqa: B904
            raise RuntimeError(how) from (first if how == "from" else None)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sg.Guard(model, optimizer, loss_fn) as guard:
        for how in ("alone", "while", "from", "from none"):
            for call in (lambda: guard.step(how), lambda: loss_fn(model, how)):  # noqa: B023
                with pytest.raises(RuntimeError) as raised:
                    call()
                told.append(raised.value)
    chains = [(repr(e.__context__), repr(e.__cause__), e.__suppress_context__) for e in told]
    assert chains[::2] == chains[1::2]
    assert chains[2] == ("KeyError('first')", "None", False)
