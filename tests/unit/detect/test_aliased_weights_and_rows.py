"""Anchors that are the weights, adapters behind a factor of zero, rows that are one array, and what looks like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg


def told(model: nn.Module, loss_of: Callable[[], Tensor], updates: int = 12) -> set[str]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    guard = sg.attach(optimizer, model=model)
    for _ in range(updates):
        optimizer.zero_grad()
        loss_of().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    guard.close()
    assert not guard.summary()["guard_faults"]
    return {found.slug for found in guard.vitals}


def kept(model: nn.Module, how: str) -> list[Tensor]:
    if how == "weights":
        return list(model.parameters())
    if how == "copies":
        return [parameter.detach().clone() for parameter in model.parameters()]
    return [parameter.clone() for parameter in nn.Linear(8, 8).parameters()]


@pytest.mark.parametrize(("how", "seen"), [("weights", True), ("copies", False), ("others", False)])
def test_an_anchor_that_is_the_weights_themselves_is_named(how: str, seen: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    anchor = kept(model, how)

    def loss() -> Tensor:
        x = torch.randn(16, 8)
        stay = sum((p - a).pow(2).sum() for p, a in zip(model.parameters(), anchor, strict=True))
        return F.mse_loss(model(x), x.flip(1)) + stay

    assert ("reference_aliased" in told(model, loss)) is seen


class Adapted(nn.Module):
    def __init__(self, scale: float | nn.Parameter, *, zero_head: bool = False) -> None:
        super().__init__()
        self.base, self.scale = nn.Linear(16, 12).requires_grad_(False), scale
        self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 12, bias=False)
        nn.init.zeros_(self.up.weight)
        self.head = nn.Linear(12, 3)
        if zero_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.base(x) + self.scale * self.up(self.down(x))))


def classify(model: nn.Module) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        x = torch.randn(16, 16)
        return F.cross_entropy(model(x), x[:, :3].argmax(1))

    return loss


def test_adapters_behind_a_factor_of_zero_are_named() -> None:
    torch.manual_seed(0)
    model = Adapted(8 // 16)
    assert "lora_inactive" in told(model, classify(model))


@pytest.mark.parametrize("make", [lambda: Adapted(0.5), lambda: Adapted(0.5, zero_head=True)])
def test_adapters_whose_outer_matrix_or_head_begins_at_zero_are_left_alone(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    assert "lora_inactive" not in told(model, classify(model))


def test_adapters_behind_a_gate_that_begins_at_zero_and_learns_are_left_alone() -> None:
    torch.manual_seed(0)
    model = Adapted(nn.Parameter(torch.zeros(())))
    nn.init.ones_(model.up.weight)
    assert "lora_inactive" not in told(model, classify(model))


class World:
    """Writes what it shows into one array."""

    def __init__(self) -> None:
        self.shown = numpy.zeros(8, dtype=numpy.float32)

    def look(self) -> Any:
        self.shown[:] = numpy.random.default_rng().normal(size=8)
        return self.shown


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize(("copies", "seen"), [(False, True), (True, False)])
def test_a_replay_memory_of_one_array_is_named(copies: bool, seen: bool, asks: bool) -> None:
    torch.manual_seed(0)
    world, memory, model = World(), [], nn.Linear(8, 2)

    def loss() -> Tensor:
        for number in range(20):
            state = world.look()
            if asks:
                model(torch.from_numpy(state))  # an answer for the world, with gradients that are not used
            memory.append((state.copy() if copies else state, number % 2))
        rows = memory[-16:]
        x, y = torch.from_numpy(numpy.stack([s for s, _ in rows])), torch.tensor([each for _, each in rows])
        return F.cross_entropy(model(x), y)

    assert ("aliased_samples" in told(model, loss)) is seen


def one_prompt(model: nn.Module) -> Tensor:
    entries = [(torch.randn(8), number) for number in range(40)]
    x = entries[0][0].repeat(16, 1)
    return F.cross_entropy(model(x), torch.randint(0, 2, (16,)))


def one_batch_again(model: nn.Module) -> Tensor:
    entries = [torch.ones(8)] * 40
    return F.cross_entropy(model(torch.stack(entries[:16])), torch.arange(16) % 2)


def context_beside_states(model: nn.Module) -> Tensor:
    context = torch.ones(8)
    entries = [(context, torch.randn(8)) for _ in range(40)]
    both = [torch.stack([entry[place] for entry in entries[:16]]) for place in (0, 1)]
    return F.cross_entropy(model(*both), torch.arange(16) % 2)


class Two(nn.Linear):
    def forward(self, one: Tensor, other: Tensor | None = None) -> Tensor:
        return super().forward(one if other is None else one + other)


@pytest.mark.parametrize("loss_of", [one_prompt, one_batch_again, context_beside_states])
def test_prompts_and_contexts_that_are_repeated_on_purpose_are_left_alone(loss_of: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    model = Two(8, 2)
    assert "aliased_samples" not in told(model, lambda: loss_of(model))
