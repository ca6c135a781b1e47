"""Healthy weights come out as without a guard: parameters that come later, and runs that are rough but healthy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from harm_runs import finite, pairs, same_bits, squared, tower
from torch import Tensor, nn
from torch.nn import functional

import steadygrad as sg

Change = Callable[[nn.Sequential, torch.optim.Optimizer, int], None]


# -- parameters that come later


def thaw_layer_by_layer(model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step == 0:
        for layer in (0, 2):
            model[layer].requires_grad_(False)
    if step in (4, 8):
        model[2 if step == 4 else 0].requires_grad_(True)


def groups_one_after_another(model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step == 0:
        for layer in (0, 2):
            model[layer].requires_grad_(False)
        optimizer.param_groups[0]["params"] = list(model[4].parameters())
    if step in (4, 8):
        layer = model[2 if step == 4 else 0].requires_grad_(True)
        optimizer.add_param_group({"params": list(layer.parameters()), "lr": 1e-3})


def freeze_and_thaw(model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step in (3, 7):
        model[0].requires_grad_(step == 7)


def new_layer_in_the_middle(model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step == 5:
        adapter = nn.Linear(16, 16, bias=False)
        nn.init.eye_(adapter.weight)
        model.insert(4, adapter)
        optimizer.add_param_group({"params": list(adapter.parameters())})


LATER = [thaw_layer_by_layer, groups_one_after_another, freeze_and_thaw, new_layer_in_the_middle]


def plain_with(change: Change) -> nn.Module:
    model = tower()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for step, batch in enumerate(pairs(12)):
        change(model, optimizer, step)
        squared(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def guarded_with(change: Change, how: str, batches: Any) -> tuple[nn.Module, Any]:
    model = tower()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    change(model, optimizer, 0)
    guard: Any = sg.Guard(model, optimizer, squared, diagnose="off") if how == "Guard" else None
    guard = guard or sg.attach(optimizer, model=model)
    with guard:
        for step, batch in enumerate(batches):
            if step:
                change(model, optimizer, step)
            if how == "Guard":
                guard.step(batch)
            else:
                squared(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
    return model, guard


@pytest.mark.parametrize("how", ["Guard", "attach"])
@pytest.mark.parametrize("change", LATER)
def test_parameters_that_come_later_are_trained_as_without_a_guard(change: Change, how: str) -> None:
    model, guard = guarded_with(change, how, pairs(12))
    assert same_bits(model, plain_with(change))
    assert guard.summary()["skipped"] == 0


@pytest.mark.parametrize("how", ["Guard", "attach"])
@pytest.mark.parametrize("change", [thaw_layer_by_layer, groups_one_after_another, new_layer_in_the_middle])
def test_a_nan_gradient_of_a_parameter_that_came_later_is_refused(change: Change, how: str) -> None:
    """The gradient of the newest parameter alone is bad, from step 9 to step 10."""

    def with_poison(model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> None:
        change(model, optimizer, step)
        if step == 9:
            newest = optimizer.param_groups[-1]["params"][0]
            state["hook"] = newest.register_hook(lambda grad: grad * math.nan)
        if step == 10:
            state["hook"].remove()

    state: dict[str, Any] = {}
    model, guard = guarded_with(with_poison, how, pairs(14))
    assert finite(model.parameters())
    assert guard.summary()["skipped"] == 1


# -- rough but healthy


def rare_hard_batches(steps: int) -> Iterator[Any]:
    """Near zero loss, and once in a while a batch that the model has never seen the like of."""
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = torch.randn(16, 8, generator=generator)
        easy = step % 61 != 60
        yield (torch.ones(16, 8) * 0.1 if easy else x * 4), torch.zeros(16, dtype=torch.long) + (0 if easy else 3)


def two_tasks_of_unequal_scale(steps: int) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(2)
    for step in range(steps):
        x = torch.randn(16, 8, generator=generator)
        yield (x, torch.randint(0, 4, (16,), generator=generator)) if step % 5 else (x * 300.0, torch.zeros(16).long())


def classes_one_after_another(steps: int) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        yield torch.randn(16, 8, generator=generator), torch.full((16,), (step // 80) % 4)


def noise_then_calm(steps: int) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(4)
    for step in range(steps):
        scale = 20.0 if (step // 100) % 2 else 0.01
        yield scale * torch.randn(16, 8, generator=generator), torch.randint(0, 4, (16,), generator=generator)


def entropy(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def classifier(form: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    if form == "sgd":
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)


@pytest.mark.parametrize("form", ["adamw", "sgd"])
@pytest.mark.parametrize(
    "regime", [rare_hard_batches, two_tasks_of_unequal_scale, classes_one_after_another, noise_then_calm]
)
def test_a_rough_but_healthy_regime_has_the_plain_bits(regime: Callable[[int], Iterator[Any]], form: str) -> None:
    model, optimizer = classifier(form)
    for batch in regime(480):
        entropy(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    other, steps = classifier(form)
    with sg.Guard(other, steps, entropy, max_grad_norm=1.0) as guard:
        for batch in regime(480):
            guard.step(batch)
    told = guard.summary()
    assert (told["skipped"], told["rolled_back"], told["lr_factor"], told["clip_factor"]) == (0, 0, 1.0, 1.0)
    assert same_bits(model, other)
