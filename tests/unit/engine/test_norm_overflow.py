"""Finite gradients whose norm is more than their dtype holds: that proves nothing, and the update is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import steadygrad as sg
from steadygrad.integrations.optimizer import update_numbers

ENTRIES = ["now", "late", "attach", "attach on a device"]


def steep(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).pow(2).mean() * 1e22


def train(entry: str, optimizer_of: Any, loss_fn: Any = steep, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Train with dropout on batches that are drawn in the loop; "" is the plain loop."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1)).to(dtype)
    optimizer = optimizer_of(model.parameters())
    guard: Any = None
    if entry.startswith("attach"):
        guard = sg.attach(optimizer, model=model)
    elif entry:
        guard = sg.Guard(model, optimizer, loss_fn, settle=entry)
    for number in range(8):
        batch = torch.randn(16, 6).to(dtype)
        if guard is not None and not entry.startswith("attach"):
            guard.step(batch)
            continue
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
        assert torch.isfinite(model[0].weight).all(), number
    if guard is not None:
        guard.close()
    return [model.state_dict(), optimizer.state_dict()["state"], torch.get_rng_state()], guard


@pytest.mark.parametrize("entry", ENTRIES)
def test_updates_of_gradients_whose_squares_overflow_are_made_as_alone(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if entry == "attach on a device":
        monkeypatch.setattr(update_numbers, "ON_DEVICE", ("cpu",))

    def sgd(parameters: Any) -> optim.Optimizer:
        return optim.SGD(parameters, lr=1e-24, momentum=0.9, fused=True)

    alone, _ = train("", sgd)
    guarded, guard = train(entry, sgd)
    torch.testing.assert_close(guarded, alone, rtol=0, atol=0)
    assert guard.incidents == []
    assert guard.summary()["skipped"] == 0


@pytest.mark.parametrize("entry", ["now", "attach"])
def test_a_norm_that_only_half_precision_cannot_hold_refuses_nothing(entry: str) -> None:
    def large(model: nn.Module, batch: Tensor) -> Tensor:
        weight = model[0].weight  # type: ignore[index,union-attr]
        return model(batch).float().mean() + (weight - weight.detach()).sum() * 3e4

    def sgd(parameters: Any) -> optim.Optimizer:
        return optim.SGD(parameters, lr=1e-7)

    alone, _ = train("", sgd, large, torch.float16)
    guarded, guard = train(entry, sgd, large, torch.float16)
    torch.testing.assert_close(guarded, alone, rtol=0, atol=0)
    assert guard.summary()["skipped"] == 0


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_moment_that_overflows_by_such_a_gradient_is_refused(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if entry == "attach on a device":
        monkeypatch.setattr(update_numbers, "ON_DEVICE", ("cpu",))

    def once_steep(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).pow(2).mean() * (1e25 if bool(batch[0, 0] > 1) else 1.0)

    def adam(parameters: Any) -> optim.Optimizer:
        return optim.Adam(parameters, lr=1e-2, fused=True)

    (_, moments, _), guard = train(entry, adam, once_steep)
    assert guard.incidents[0].symptom == "nan_state"
    assert all(bool(torch.isfinite(value).all()) for state in moments.values() for value in state.values())
    assert 0 < guard.summary()["skipped"] < 8


def test_where_an_update_could_not_be_undone_an_infinite_norm_is_refused_as_before() -> None:
    model = nn.Linear(4, 1)
    optimizer = optim.Adam(model.parameters())
    with sg.attach(optimizer, model=model) as guard:
        steep(model, torch.ones(2, 4)).backward()
        assert not guard._loops[0].admit(0, None, None)
        assert guard.incidents[0].findings[0].code == "SY104"
