"""Plain attributes of a model: what you set between two steps stays set, what a refused forward moved goes back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import steadygrad as sg
from steadygrad.engine.state import moving_tensors
from steadygrad.engine.state.forward_state import ForwardState

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


class MovingKeys(nn.Module):
    """As in momentum contrast: forward moves frozen parameters towards trained ones, by assignment or in place."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for query, key in zip(self.query.parameters(), self.key.parameters(), strict=True):
                if self.in_place:
                    key.lerp_(query, 0.1)
                else:
                    key.data = key.data * 0.9 + query.data * 0.1
        return (self.query(x) - self.key(x)).square().mean() + self.query(x).sum() * 0.1


def train_keys(entry: str, bad_at: int | None, *, in_place: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = MovingKeys(in_place=in_place)
    optimizer = optim.SGD(model.query.parameters(), lr=0.1, momentum=0.9)
    batches = [torch.randn(4, 3) for _ in range(12)]
    if bad_at is not None:
        batches.insert(bad_at, torch.full((4, 3), math.nan))
    if entry == "guard":
        with sg.Guard(model, optimizer, lambda m, b: m(b), policy=SKIP_ONLY, diagnose="off") as guard:
            for batch in batches:
                guard.step(batch)
    else:
        with sg.attach(optimizer, model=model, policy=SKIP_ONLY) as guard:
            for batch in batches:
                model(batch).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert guard.summary()["skipped"] == int(bad_at is not None)
    return model.state_dict()


@pytest.mark.parametrize("entry", ["guard", "attach"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("bad_at", [2, 9])
def test_frozen_parameters_that_forward_moves_are_those_of_the_run_without_the_batch(
    entry: str, in_place: bool, bad_at: int
) -> None:
    expected, found = (train_keys(entry, at, in_place=in_place) for at in (None, bad_at))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_frozen_parameters_that_the_loop_moves_between_steps_are_not_copied() -> None:
    model = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 1))
    state = ForwardState([model])
    for _ in range(8):
        entry = state.take()
        model(torch.randn(2, 3))
        state.notice()
        state.audit(values=False)
        with torch.no_grad():
            model[0].weight.lerp_(torch.randn(3, 3), 0.1)
        assert entry.hot == []


def test_frozen_parameters_too_large_to_copy_are_named_when_a_batch_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(moving_tensors, "_MOST_BYTES", 16)
    model = MovingKeys(in_place=True)
    state = ForwardState([model])
    for _ in range(3):
        entry = state.take()
        model(torch.randn(2, 3))
        state.notice()
    assert entry.hot == []
    assert set(state.restore(entry)) == {"key.weight", "key.bias"}


def test_frozen_parameters_that_the_first_refused_batch_moves_are_named_as_not_restored() -> None:
    model = MovingKeys(in_place=False)
    state = ForwardState([model])
    entry = state.take()
    model(torch.randn(2, 3))
    assert set(state.restore(entry)) == {"key.weight", "key.bias"}
