"""An update that goes wrong by itself is looked at before it is believed, and only where something is new to it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import steadygrad as sg
from steadygrad.engine.unease import Unease


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch[:, :4]) - batch[:, 4:]).pow(2).mean()


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 5, generator=generator) for _ in range(count)]


def guarded(optimizer_type: type[optim.Optimizer], **options: Any) -> tuple[nn.Module, optim.Optimizer, sg.Guard]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = optimizer_type(model.parameters(), **options)
    return model, optimizer, sg.Guard(model, optimizer, loss_fn, diagnose="off")


@pytest.mark.parametrize("rate", [math.inf, math.nan])
def test_an_update_with_a_rate_that_is_no_number_never_lands(rate: float) -> None:
    model, optimizer, guard = guarded(optim.SGD, lr=0.01)
    data = batches(6)
    with guard:
        for batch in data[:3]:
            guard.step(batch)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.param_groups[0]["lr"] = rate
        outcome = guard.step(data[3])
        assert not outcome.applied
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
        optimizer.param_groups[0]["lr"] = 0.01
        assert guard.step(data[4]).applied
    assert [incident.first_step for incident in guard.incidents] == [3]


def test_a_bad_moment_that_was_written_from_outside_never_reaches_a_weight() -> None:
    model, optimizer, guard = guarded(optim.SGD, lr=0.01, momentum=0.9)
    data = batches(6)
    with guard:
        for batch in data[:3]:
            guard.step(batch)
        optimizer.state[next(model.parameters())]["momentum_buffer"][0, 1] = math.nan
        guard.step(data[3])
        assert all(bool(p.isfinite().all()) for p in model.parameters())
        assert guard.step(data[4]).applied
    assert [incident.first_step for incident in guard.incidents] == [3]
    assert guard.incidents[0].symptom == "nan_state"


def test_moments_of_a_loaded_state_are_looked_at_once() -> None:
    _, optimizer, guard = guarded(optim.Adam, lr=0.01)
    data = batches(6)
    with guard:
        for batch in data[:2]:
            guard.step(batch)
        optimizer.load_state_dict(optimizer.state_dict())
        assert all(guard.step(batch).applied for batch in data[2:])
    assert guard.incidents == []


def test_nothing_is_due_while_all_goes_as_before_and_something_is_when_it_does_not() -> None:
    model = nn.Linear(4, 1)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    unease = Unease([optimizer], versions=True)
    asked = []
    for batch in batches(4):
        loss_fn(model, batch).backward()
        asked.append(unease.due((0, 1)))
        optimizer.step()
        unease.note((0, 1))
        optimizer.zero_grad()
    assert asked == [True, False, False, False]
    assert unease.due((0, 1, 2))
    optimizer.state[model.weight]["exp_avg"].add_(1.0)
    assert unease.due((0, 1))
    unease.note((0, 1))
    assert not unease.wants_host
    optimizer.param_groups[0]["weight_decay"] = math.inf
    assert unease.wants_host
