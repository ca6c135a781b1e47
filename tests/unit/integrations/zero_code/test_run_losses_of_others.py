"""An update is judged by the losses that gave it its gradients, and not by what another training left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn


def training(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    torch.manual_seed(seed)
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(8, 4)


def given_up() -> None:
    """A training that ends after a bad loss, without an update."""
    model, _, x = training()
    (model(x) * torch.nan).sum().backward()


def moves(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor | None) -> bool:
    before = [parameter.detach().clone() for parameter in model.parameters()]
    if loss is not None:
        loss.backward()
    optimizer.step()
    return not all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_a_training_after_one_that_was_given_up_at_a_bad_loss_makes_its_first_update(watching: Any) -> None:
    watch = watching()
    for _ in range(3):
        given_up()
        model, optimizer, x = training()
        assert moves(model, optimizer, model(x).sum())
    assert [log.ledger.skipped for log in watch.ledger.log] == [0, 0, 0]
    assert [log.skipped_by_program for log in watch.ledger.log] == [1, 1, 1], "the bad losses are reported"
    assert watch.barrier.faults == {}


def test_a_bad_loss_of_another_model_that_is_being_trained_withholds_no_update(watching: Any) -> None:
    watch = watching()
    other, _others_optimizer, x = training(1)
    model, optimizer, _ = training()
    (other(x) * torch.nan).sum().backward()
    assert moves(model, optimizer, model(x).sum())
    assert sum(log.ledger.skipped for log in watch.ledger.log) == 0


def test_an_update_that_no_backward_fed_is_judged_by_its_gradients(watching: Any) -> None:
    watching()
    given_up()
    model, optimizer, _ = training()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert moves(model, optimizer, None)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_bad_loss_with_finite_gradients_still_withholds_the_update_that_it_fed(watching: Any, when: str) -> None:
    watching()
    other, _others_optimizer, x = training(1)
    model, optimizer, _ = training()
    loss = model(x).sum() + torch.tensor(torch.nan)
    if when == "after":  # an optimizer that is made between backward and its update
        loss.backward()
        loss, optimizer = None, torch.optim.SGD(model.parameters(), lr=0.1)
    assert all(parameter.grad is None for parameter in other.parameters())
    assert not moves(model, optimizer, loss)


def test_a_bad_loss_through_a_function_of_the_programs_own_withholds_the_update(watching: Any) -> None:
    """What is behind such a function does not stand in the graph."""

    class Inside(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            hidden.weight.grad = torch.ones_like(hidden.weight)
            return gradient

    watching()
    model, _models_optimizer, x = training()
    hidden = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(hidden.parameters(), lr=0.1)
    loss = Inside.apply(model(x)).sum() + torch.tensor(torch.nan)  # type: ignore[no-untyped-call]
    assert not moves(hidden, optimizer, loss)


def train_a_pair(watch: Any, *, one_loss: bool) -> list[str]:
    """Two optimizers, and a loss whose level falls for seventy steps and rises far above its start then. Returns the
    first words of what was said."""
    torch.manual_seed(0)
    models = [nn.Linear(4, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-5) for model in models]
    for step in range(100):
        level = 1.0 - 0.01 * step if step < 70 else 20.0
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = [model(torch.randn(8, 4)).pow(2).mean() * 1e-3 + level for model in models]
        if one_loss:
            sum(losses, torch.zeros(())).backward()
            for optimizer in optimizers:
                optimizer.step()
            continue
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.backward()
            optimizer.step()
    assert watch.barrier.faults == {}
    return [kind for log in watch.ledger.log for kind in log._shown]


def test_the_level_of_a_loss_is_not_judged_where_optimizers_take_turns(watching: Any) -> None:
    """An actor's loss stands high because the critic's estimates fell: nothing has diverged."""
    assert "SY203" not in train_a_pair(watching(), one_loss=False)


def test_the_level_of_a_loss_that_two_optimizers_share_is_judged(watching: Any) -> None:
    assert "SY203" in train_a_pair(watching(), one_loss=True)
