"""Optimizers of the program whose updates never reach the weights, and healthy ones that look like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import steadygrad as sg

Write = Callable[[Tensor, Tensor, dict[str, Any]], None]


class ByHand(Optimizer):
    def __init__(self, parameters: Any, write: Write, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})
        self.write = write

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                self.write(weight, group["lr"] * weight.grad, self.state[weight])


def plainly(weight: Tensor, update: Tensor, _state: dict[str, Any]) -> None:
    weight.sub_(update)


def to_another_dtype(weight: Tensor, update: Tensor, _state: dict[str, Any]) -> None:
    weight.double().sub_(update)


def to_a_new_name(weight: Tensor, update: Tensor, _state: dict[str, Any]) -> None:
    weight = weight - update


def matrices_through_a_mask(weight: Tensor, update: Tensor, state: dict[str, Any]) -> None:
    momentum = state.setdefault("momentum", torch.zeros_like(weight))
    momentum.mul_(0.9).add_(update)
    if weight.dim() > 1:
        weight.data[update != 0].sub_(momentum[update != 0])
    else:
        weight.sub_(momentum)


def assigned_through_a_mask(weight: Tensor, update: Tensor, _state: dict[str, Any]) -> None:
    weight.data[update != 0] -= update[update != 0]


def at_every_sixth_step(weight: Tensor, update: Tensor, state: dict[str, Any]) -> None:
    state["number"] = state.get("number", 0) + 1
    state.setdefault("sum", torch.zeros_like(weight)).add_(update)
    if state["number"] % 6 == 0:
        weight.sub_(state["sum"] / 6)
        state["sum"].zero_()


def with_a_small_part_of_the_rate(weight: Tensor, update: Tensor, _state: dict[str, Any]) -> None:
    weight.sub_(update * 1e-8)


def causes(write: Write, lr: float = 0.1, *, normalised: bool = False) -> list[str]:
    torch.manual_seed(0)
    between = nn.LayerNorm(16) if normalised else nn.Tanh()
    model = nn.Sequential(nn.Linear(6, 16), between, nn.Linear(16, 1))
    optimizer = ByHand(model.parameters(), write, lr)
    with sg.attach(optimizer, model=model) as guard:
        for _ in range(12):
            optimizer.zero_grad()
            (model(torch.randn(8, 6)) - 3).pow(2).mean().backward()
            optimizer.step()
    assert guard.summary()["guard_faults"] == {}
    found = [incident for incident in guard.incidents if incident.diagnosis is not None]
    assert all(incident.first_step <= 2 for incident in found)
    return [incident.diagnosis.cause.slug for incident in found if incident.diagnosis and incident.diagnosis.cause]


@pytest.mark.parametrize("write", [to_another_dtype, to_a_new_name, matrices_through_a_mask])
def test_updates_that_are_written_to_a_copy_are_named_within_three_steps(write: Write) -> None:
    assert causes(write) == ["update_lost_in_copy"]


@pytest.mark.parametrize("write", [plainly, assigned_through_a_mask, at_every_sixth_step])
def test_updates_that_reach_the_weights_are_left_alone(write: Write) -> None:
    assert causes(write) == []


def test_a_step_that_float32_cannot_take_is_not_called_lost_in_a_copy() -> None:
    assert causes(plainly, lr=1e-12) == []


def test_an_optimizer_that_begins_with_a_small_part_of_the_rate_is_left_alone() -> None:
    """It finds its rate as it goes (D-Adaptation). Small weights move at first, a gain of one cannot."""
    assert causes(with_a_small_part_of_the_rate, normalised=True) == []


@pytest.mark.parametrize("copied_back", [True, False])
def test_weights_with_a_copy_in_the_optimizer_are_trained_as_long_as_they_are_written(copied_back: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 2).bfloat16()
    masters = [weight.detach().float() for weight in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    with sg.attach(optimizer, model=model) as guard:
        for _ in range(4):
            model.zero_grad()
            model(torch.randn(8, 6).bfloat16()).pow(2).mean().backward()
            for weight, master in zip(model.parameters(), masters, strict=True):
                master.grad = weight.grad.float()
            optimizer.step()
            for weight, master in zip(model.parameters(), masters, strict=True):
                if copied_back:
                    weight.data.copy_(master)
    assert ("parameter_not_in_optimizer" in [found.slug for found in guard.vitals]) != copied_back


def test_a_part_that_the_loss_does_not_depend_on_may_be_outside_of_the_optimizer() -> None:
    model = nn.ModuleDict({"body": nn.Linear(6, 2), "pooler": nn.Linear(2, 2)})
    optimizer = torch.optim.SGD(model["body"].parameters(), lr=0.1)
    with sg.attach(optimizer, model=model) as guard:
        for _ in range(4):
            optimizer.zero_grad()
            model["body"](torch.randn(8, 6)).pow(2).mean().backward()
            optimizer.step()
    assert guard.vitals == []


@pytest.mark.parametrize("restored", [True, False])
def test_state_whose_dtype_the_program_restores_after_loading_is_left_alone(restored: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 2).bfloat16()

    def write(weight: Tensor, update: Tensor, state: dict[str, Any]) -> None:
        state.setdefault("sum", torch.zeros_like(weight, dtype=torch.float32)).add_(update)
        weight.sub_(update)

    optimizer = ByHand(model.parameters(), write)
    with sg.attach(optimizer, model=model) as guard:
        for number in range(6):
            if number == 3:
                saved = optimizer.state_dict()
                optimizer.load_state_dict(saved)
                for state in optimizer.state.values() if restored else ():
                    state["sum"] = state["sum"].float()
            optimizer.zero_grad()
            (model(torch.randn(8, 6).bfloat16()) - 3).pow(2).mean().backward()
            optimizer.step()
    assert ("dtype_downcast_of_moments" in [found.slug for found in guard.vitals]) != restored


def test_an_optimizer_that_finds_its_rate_itself_is_no_fault() -> None:
    model = nn.Linear(6, 2)

    def write(weight: Tensor, update: Tensor, _state: dict[str, Any]) -> None:
        weight.sub_(update)

    class Own(ByHand):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for weight in self.param_groups[0]["params"]:
                weight.sub_(0.1 * weight.grad)

    optimizer = Own(model.parameters(), write)
    optimizer.param_groups[0]["lr"] = None
    with sg.attach(optimizer, model=model) as guard:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).pow(2).mean().backward()
            optimizer.step()
    assert guard.summary()["guard_faults"] == {}
    assert guard.vitals == []


def test_a_model_whose_parts_alone_are_called_is_sampled() -> None:
    model = nn.ModuleDict({"body": nn.Linear(6, 4), "head": nn.Linear(4, 2)})
    optimizer = torch.optim.SGD(model["body"].parameters(), lr=0.1)
    with sg.attach(optimizer, model=model) as guard:
        for _ in range(4):
            optimizer.zero_grad()
            model["head"](model["body"](torch.randn(8, 6))).pow(2).mean().backward()
            optimizer.step()
    assert [found.slug for found in guard.vitals] == ["parameter_not_in_optimizer"]
    assert guard.summary()["guard_faults"] == {}
