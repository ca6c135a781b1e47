"""A regime on another device: everything it holds is moved. The meta device shows it on a machine without a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from soak.devices import VARIABLE, on_chosen_device
from soak.plain_loop import run_loop
from soak.programs import Builder
from soak.runner import soak
from soak.training import Training, single
from torch import Tensor, nn


class Scaled:
    """A loss that keeps a tensor of its own."""

    def __init__(self) -> None:
        self.weight = torch.ones(2)

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        return (model(batch) * self.weight).sum()


def _weighted(weight: Tensor, model: nn.Module, batch: Any) -> Tensor:
    return (model(batch) * weight).sum()


def _closure() -> Any:
    weights = {"both": torch.ones(2)}
    return lambda model, batch: (model(batch) * weights["both"]).sum()


def _training(loss: Any) -> Training:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return single(model, optimizer, loss, iter([torch.ones(1, 3)] * 4))


@pytest.mark.parametrize(
    "loss", [Scaled(), partial(_weighted, torch.ones(2)), _closure()], ids=["object", "partial", "closure"]
)
def test_a_training_and_what_its_loss_holds_are_moved_together(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "meta")
    was = torch.are_deterministic_algorithms_enabled()
    training = on_chosen_device(_training(loss))
    torch.use_deterministic_algorithms(was)
    player = training.players[0]
    value = player.loss(player.model, next(training.batches))
    value.backward()
    assert value.device.type == "meta"
    assert {parameter.grad.device.type for parameter in player.model.parameters() if parameter.grad is not None} == {
        "meta"
    }
    player.optimizers[0].step()


def test_on_a_cpu_a_training_is_handed_back_as_it_is() -> None:
    training = _training(Scaled())
    batches = training.batches
    assert on_chosen_device(training) is training
    assert training.batches is batches
    assert len(list(run_loop(training, 2))) == 2


def test_a_regime_that_does_not_run_on_the_device_is_counted_as_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "meta")
    was = torch.are_deterministic_algorithms_enabled()
    results = list(soak(Builder("exact_regression", 0).name, 0, ["guard", "attach"], 3))
    torch.use_deterministic_algorithms(was)
    assert [result.status for result in results] == ["n/a", "n/a"]
    assert all("does not run on meta" in result.why for result in results)
