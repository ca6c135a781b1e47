"""A learning rate that is no number: the update is refused by that name, then the last finite rate is held."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import steadygrad as sg


def rates(nan_from: int, nan_until: int, steps: int) -> list[float]:
    return [math.nan if nan_from <= step < nan_until else 0.05 for step in range(steps)]


def train(schedule: list[float]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(1)
    for rate in schedule:
        x, y = torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        assert math.isnan(optimizer.param_groups[0]["lr"]) == math.isnan(rate)  # it is the program's
    return model, optimizer


def test_a_rate_that_stays_nan_is_held_after_three_refusals_and_nothing_is_lost(watching: Any) -> None:
    watch = watching(diagnose="off")
    model, _ = train(rates(20, 60, 60))
    (log,) = watch.ledger.log
    assert "the learning rate is nan" in log.incidents[0].headline
    ledger = log.ledger
    assert (ledger.skipped, ledger.applied, ledger.rollbacks_total) == (3, 57, 0)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    # As a run that leaves out those three batches and keeps its rate.
    watch.stop()
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for step in range(60):
        x, y = torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        if step not in (20, 21, 22):
            optimizer.zero_grad()
            nn.functional.cross_entropy(other(x), y).backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_rate_that_is_nan_once_costs_one_batch(watching: Any) -> None:
    watch = watching(diagnose="off")
    train(rates(20, 21, 40))
    (log,) = watch.ledger.log
    assert (log.ledger.skipped, log.ledger.rate_held) == (1, False)


def test_a_guard_holds_it_too() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = sg.Guard(model, optimizer, loss_fn=lambda m, x: m(x).square().mean(), diagnose="off")
    for step in range(30):
        optimizer.param_groups[0]["lr"] = math.nan if step >= 10 else 0.01
        guard.step(torch.randn(8, 4))
    summary = guard.summary()
    guard.close()
    assert (summary["skipped"], summary["rolled_back"]) == (3, 0)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_before_the_first_good_update_there_is_no_rate_to_hold(watching: Any) -> None:
    watching(diagnose="off")
    with pytest.raises(sg.TrainingHalted, match="the learning rate is nan"):
        train(rates(0, 200, 200))


# -- the line behind it


def warm_up(step: int) -> Any:
    span = numpy.float64(max(0, 3 - step))
    share = (span - 0.0) / span if step else numpy.float64(1.0)
    return 0.5 * share


def told(step: int) -> float:
    return math.nan if step == 3 else 1.0


def scheduled(function: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, function)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.rand(4, 3)).square().mean().backward()
        optimizer.step()
        schedule.step()


def first_diagnosis(watch: Any) -> Any:
    assert watch.barrier.faults == {}
    return next(iter(watch.ledger.log)).incidents[0].diagnosis


def test_the_line_of_a_schedule_that_divides_by_zero_is_named(watching: Any) -> None:
    watch = watching(diagnose="auto")
    with numpy.errstate(all="ignore"):
        scheduled(warm_up)
    found = first_diagnosis(watch)
    assert found.cause.slug == "lr_divergence"
    assert found.origin.code_line.startswith("share = (span - 0.0) / span")
    assert any("asked once more" in note for note in found.notes)


def test_of_a_rate_that_was_only_told_the_line_of_the_update_is_named(watching: Any) -> None:
    watch = watching(diagnose="auto")
    scheduled(told)
    found = first_diagnosis(watch)
    assert (found.phase, found.origin.code_line) == ("optimizer", "optimizer.step()")
