"""A schedule of an optimizer that is not the one that trains, and statistics that no batch moves, at `sg.attach`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

import steadygrad as sg


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of")
        yield


def train(model: nn.Module, optimizer: Optimizer, after: Callable[[], None], updates: int = 35) -> list[str]:
    """The causes that are named for a plain loop that calls `after` at the end of each step."""
    with sg.attach(optimizer, model=model) as guard:
        for _ in range(updates):
            model.train()
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 2)).backward()
            optimizer.step()
            after()
    assert guard.summary()["guard_faults"] == {}
    return [incident.diagnosis.cause.slug for incident in guard.incidents if incident.diagnosis is not None]


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def cosine(optimizer: Optimizer) -> LRScheduler:
    return CosineAnnealingLR(optimizer, 100)


def test_a_schedule_of_an_optimizer_that_is_never_stepped_is_named() -> None:
    model = nn.Linear(6, 2)
    schedule = cosine(sgd(model))
    assert train(model, sgd(model), schedule.step) == ["schedule_of_another_optimizer"]


def test_a_schedule_of_the_optimizer_itself_is_left_alone() -> None:
    model = nn.Linear(6, 2)
    optimizer = sgd(model)
    assert train(model, optimizer, cosine(optimizer).step) == []


def test_a_schedule_that_is_not_stepped_or_of_other_parameters_is_left_alone() -> None:
    model = nn.Linear(6, 2)
    idle, other = cosine(sgd(model)), cosine(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
    assert train(model, sgd(model), other.step) == []
    assert idle.last_epoch == 0


def test_rates_that_the_program_copies_from_the_schedule_are_left_alone() -> None:
    model = nn.Linear(6, 2)
    schedule, optimizer = cosine(sgd(model)), sgd(model)

    def copied() -> None:
        schedule.step()
        optimizer.param_groups[0]["lr"] = schedule.get_last_lr()[0]

    assert train(model, optimizer, copied) == []


def test_the_schedule_of_an_earlier_phase_is_left_alone() -> None:
    model = nn.Linear(6, 2)
    first = sgd(model)
    schedule = cosine(first)
    assert train(model, first, schedule.step, updates=5) == []
    assert train(model, sgd(model), schedule.step) == []


def test_a_schedule_of_a_wrapper_that_shares_the_groups_is_left_alone() -> None:
    model = nn.Linear(6, 2)
    inner, outer = sgd(model), sgd(model)
    outer.param_groups = inner.param_groups
    assert train(model, inner, cosine(outer).step) == []


def normed(momentum: float | None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 2))


def evaluated(model: nn.Module) -> Callable[[], None]:
    def after() -> None:
        model.eval()
        with torch.no_grad():
            model(torch.randn(8, 6))

    return after


def test_statistics_that_a_momentum_of_zero_holds_at_their_start_are_named() -> None:
    model = normed(0.0)
    assert train(model, sgd(model), evaluated(model), updates=4) == ["statistics_never_move"]


@pytest.mark.parametrize("momentum", [0.1, 0.001, None])
def test_statistics_that_move_are_left_alone(momentum: float | None) -> None:
    model = normed(momentum)
    assert train(model, sgd(model), evaluated(model), updates=4) == []


def test_pretrained_statistics_held_on_purpose_and_nets_without_evaluation_are_left_alone() -> None:
    pretrained, plain = normed(0.1), normed(0.0)
    pretrained(torch.randn(64, 6))
    pretrained[1].momentum = 0.0
    assert train(pretrained, sgd(pretrained), evaluated(pretrained), updates=4) == []
    assert train(plain, sgd(plain), lambda: None, updates=4) == []
