"""Decay that a program writes by hand is seen where updates cannot hold the weights; other writes are left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import steadygrad as sg

RATE, DECAY = 2e-3, 0.1


def told(after: Callable[[nn.Module], None], rate: float = RATE) -> set[str]:
    """What is said of a training in which this is done to the model after each update."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    guard = sg.attach(optimizer, model=model)
    for _ in range(12):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        F.mse_loss(model(x), x[:, :4]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            after(model)
    guard.close()
    assert not guard.summary()["guard_faults"]
    return {found.slug for found in guard.vitals}


def shrink(part: float) -> Callable[[nn.Module], None]:
    def all_weights(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.mul_(1 - part)

    return all_weights


def test_decay_without_the_rate_is_seen() -> None:
    assert "weight_decay_dominates" in told(shrink(DECAY))


def limited(model: nn.Module) -> None:
    """Rows no longer than a limit."""
    for parameter in model.parameters():
        parameter.copy_(torch.renorm(parameter, 2, 0, 0.5) if parameter.dim() > 1 else parameter)


def scaled_to_length(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.mul_(1 / max(1.0, float(parameter.norm())))


def nothing(model: nn.Module) -> None: ...


def once_smaller() -> Callable[[nn.Module], None]:
    left = [1]

    def perturb(model: nn.Module) -> None:
        if left:
            left.pop()
            shrink(0.5)(model)

    return perturb


@pytest.mark.parametrize(
    "after", [nothing, shrink(DECAY * RATE), shrink(1e-3), limited, scaled_to_length, once_smaller()]
)
def test_the_usual_decay_and_other_writes_are_healthy(after: Callable[[nn.Module], None]) -> None:
    assert "weight_decay_dominates" not in told(after)


def test_decay_that_updates_can_hold_is_healthy() -> None:
    assert "weight_decay_dominates" not in told(shrink(4e-3), rate=0.1)
