"""Random numbers that a model draws in a call without gradients belong to the batch where every batch has such a call;
else it is said that they may differ."""

from __future__ import annotations

import copy
import gc
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.detect.tensors.living_objects import living

NOTICE = "a refused batch changed random numbers"


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))


def batches(bad_at: int | None) -> list[Tensor]:
    made = list(torch.randn(9, 4, 3, generator=torch.Generator().manual_seed(7)))
    return made if bad_at is None else [*made[:bad_at], torch.full((4, 3), math.nan), *made[bad_at:]]


def train(order: str, bad_at: int | None, *, attach: bool = False) -> dict[str, Any]:
    """`order`: when the value of the next state is computed without gradients, and by which model."""
    model = net()
    other = copy.deepcopy(model) if "other" in order else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = sg.attach(optimizer, model=model) if attach else None
    for batch in batches(bad_at):
        finite = bool(torch.isfinite(batch).all())
        target: Any = 0.0
        if order.startswith("before") or (order == "once" and (not finite or torch.equal(batch, batches(None)[4]))):
            with torch.no_grad():
                target = other(batch)
        value = model(batch)
        if order.startswith("after"):
            with torch.no_grad():
                target = other(batch)
        optimizer.zero_grad()
        (value - target).pow(2).mean().backward()
        optimizer.step()
    if guard is not None:
        assert guard.summary()["skipped"] == int(bad_at is not None)
        guard.close()
    return {**model.state_dict(), "rng": torch.get_rng_state()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("bad_at", [4, 7])
def test_they_are_those_of_the_run_without_the_batch_under_steady_run(order: str, bad_at: int, watching: Any) -> None:
    expected = train(order, None)
    watch = watching()
    assert same(train(order, bad_at), expected)
    assert "not_restored" not in watch.finish()["notices"]


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("bad_at", [4, 7])
def test_they_are_those_of_the_run_without_the_batch_with_attach(order: str, bad_at: int) -> None:
    assert same(train(order, bad_at, attach=True), train(order, None))


@pytest.mark.parametrize(("order", "bad_at"), [("before", 0), ("once", 4), ("before, other", 5)])
def test_where_it_is_not_known_the_end_says_that_they_may_differ(order: str, bad_at: int, watching: Any) -> None:
    watch = watching()
    train(order, bad_at)
    assert watch.finish()["notices"]["not_restored"].startswith(NOTICE)


def test_a_call_that_draws_nothing_leaves_nothing_to_say(watching: Any) -> None:
    gc.collect()
    for module in living(nn.Module):  # models with dropout of other tests would count
        vars(module)["training"] = False
    watch = watching()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(0):
        with torch.no_grad():
            target = model(batch)
        optimizer.zero_grad()
        (model(batch) - target).pow(2).mean().backward()
        optimizer.step()
    assert "not_restored" not in watch.finish()["notices"]
