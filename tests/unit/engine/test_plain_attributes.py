"""Plain attributes of a model: what you set between two steps stays set, what a refused forward moved goes back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import steadygrad as sg

SKIP_ONLY = sg.Policy.named("balanced").but(escalation=(), skip_streak_halt=10_000, skips_per_window=(10_000, 200))


class Scheduled(nn.Module):
    """Its temperature is set from outside; it counts its calls, from the tenth on also in another place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.temperature, self.quantising, self.calls, self.late_calls = 0.5, False, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 9:
            self.late_calls += 1
        return self.layer(x) * (self.temperature if self.quantising else 1.0)


def attributes(model: Scheduled) -> dict[str, Any]:
    return {name: getattr(model, name) for name in ("temperature", "quantising", "calls", "late_calls")}


def train(settle: str, bad_at: int | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    torch.manual_seed(0)
    model = Scheduled()
    optimizer = optim.AdamW(model.parameters(), fused=True)
    with sg.Guard(
        model, optimizer, lambda m, b: m(b).square().mean(), settle=settle, policy=SKIP_ONLY, diagnose="off"
    ) as guard:
        for step in range(16):
            if step == 8:
                model.temperature, model.quantising = 0.25, True
            if step == bad_at:
                guard.step(torch.full((4, 3), math.nan))
            guard.step(torch.randn(4, 3, generator=torch.Generator().manual_seed(step)))
        guard.settle()
    assert guard.summary()["guard_faults"] == {}
    return attributes(model), model.state_dict()


@pytest.mark.parametrize("settle", ["now", "late"])
@pytest.mark.parametrize("bad_at", [0, 8, 9, 10, 13])
def test_a_refused_step_leaves_attributes_as_the_run_without_it(settle: str, bad_at: int) -> None:
    expected, weights = train(settle, None)
    found, other_weights = train(settle, bad_at)
    assert expected == {"temperature": 0.25, "quantising": True, "calls": 16, "late_calls": 7}
    assert found == expected
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


@pytest.mark.parametrize("settle", ["now", "late"])
def test_a_float64_loss_beyond_what_float32_can_hold_is_finite(settle: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    with sg.Guard(
        model, optim.AdamW(model.parameters(), fused=True), lambda m, b: (m(b) * 1e30).square().mean(),
        settle=settle, policy=SKIP_ONLY.but(snapshot_every=3), diagnose="off",
    ) as guard:  # fmt: skip
        with torch.no_grad():
            model.weight.mul_(1e20)
        for _ in range(8):
            guard.step(torch.randn(4, 3, dtype=torch.float64))
    assert guard.summary()["applied"] == 8
    assert guard.incidents == []
    assert guard.vitals == [] or all(found.code not in ("SY105", "SY106") for found in guard.vitals)
