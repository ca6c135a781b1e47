"""States of which nothing is loaded, under `steady run`: other names, or the memory of the model itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from steadygrad.detect.loop.measured.state_loads import fitting_names


def body() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = body(), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def train(model: nn.Module, optimizer: Any = None) -> Any:
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(4):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
        optimizer.step()
    return optimizer


def said(watch: Any) -> list[str]:
    log = watch.ledger.first
    watch.finish()
    assert watch.barrier.faults == {}
    return [incident.diagnosis.cause.slug for incident in log.incidents]


def under(prefix: str, module: nn.Module) -> dict[str, Any]:
    return {prefix + name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("prefix", ["encoder.", "module.body.", ""])
def test_a_state_under_another_prefix_is_reported_at_the_first_update(watching: Any, prefix: str) -> None:
    watch, model = watching(), Net()
    model.load_state_dict(under(prefix, body()), strict=False)
    _optimizer = train(model)
    assert said(watch) == ["nothing_loaded"]


def renamed_then_loaded(model: Net) -> None:
    given = body()
    model.load_state_dict(under("encoder.", given), strict=False)
    model.load_state_dict(under("body.", given), strict=False)


def copied_by_hand(model: Net) -> None:
    given = body()
    model.load_state_dict(under("encoder.", given), strict=False)
    with torch.no_grad():
        for own, value in zip(model.body.parameters(), given.parameters(), strict=True):
            own.copy_(value)


def a_part(model: Net) -> None:
    model.load_state_dict({**under("body.", body()), "queue": torch.zeros(3)}, strict=False)


def in_half_precision(model: Net) -> None:
    given = body()
    model.half()
    model.load_state_dict(under("encoder.", given), strict=False)
    model.body.load_state_dict(given.state_dict())
    model.float()


def of_inference(model: Net) -> None:
    with torch.inference_mode():
        state = model.state_dict()
    model.load_state_dict(state)


def of_other_shapes(model: Net) -> None:
    model.load_state_dict(under("encoder.", nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 9))), strict=False)


@pytest.mark.parametrize(
    "load", [renamed_then_loaded, copied_by_hand, in_half_precision, of_inference, a_part, of_other_shapes]
)
def test_loads_that_come_to_something_or_could_not_are_left_alone(watching: Any, load: Any) -> None:
    watch, model = watching(), Net()
    load(model)
    _optimizer = train(model)
    assert said(watch) == []


def test_the_best_weights_that_are_the_model_itself_are_reported(watching: Any) -> None:
    watch, model = watching(), Net()
    optimizer = train(model)
    best = model.state_dict()
    train(model, optimizer)
    model.load_state_dict(best)
    assert said(watch) == ["nothing_loaded"]


def a_copy(model: Net, optimizer: Any) -> None:
    best = copy.deepcopy(model.state_dict())
    train(model, optimizer)
    model.load_state_dict(best)


def at_once(model: Net, _optimizer: Any) -> None:
    model.load_state_dict(model.state_dict())


def written_through(model: Net, optimizer: Any) -> None:
    """What is written into the state is written into the model: loading it is not needed, and does no harm."""
    state = model.state_dict()
    train(model, optimizer)
    for value in state.values():
        value.mul_(0.9)
    model.load_state_dict(state)


def into_another(model: Net, optimizer: Any) -> None:
    state, other = model.state_dict(), Net()
    train(model, optimizer)
    other.load_state_dict(state)


@pytest.mark.parametrize("use", [a_copy, at_once, written_through, into_another])
def test_states_that_are_loaded_with_effect_are_left_alone(watching: Any, use: Any) -> None:
    watch, model = watching(), Net()
    optimizer = train(model)
    use(model, optimizer)
    train(model, optimizer)
    assert said(watch) == []


def test_names_fit_with_a_prefix_only_where_half_of_all_and_two_weights_do() -> None:
    row, square = torch.Size([4]), torch.Size([4, 4])
    own = {"body.0.weight": square, "body.0.bias": row, "body.1.weight": square}
    assert fitting_names({f"net.{name}": shape for name, shape in own.items()}, own) == (
        "net.",
        "",
        ["net.body.0.weight", "net.body.0.bias", "net.body.1.weight"],
    )
    assert fitting_names({"net.0.weight": square}, own) is None
    assert fitting_names({"net.a": square, "net.b": square}, own) is None
    assert fitting_names({"net.bias": row}, own) is None


@pytest.mark.parametrize(
    ("uses", "updates", "told"), [(2, 0, ["ema_never_updated"]), (2, 1, []), (1, 0, []), (0, 0, [])]
)
def test_an_average_that_is_used_and_never_updated_is_reported_at_the_end(
    watching: Any, uses: int, updates: int, told: list[str]
) -> None:
    watch, model = watching(), Net()
    average, optimizer = AveragedModel(model), train(model)
    for _ in range(uses):
        average(torch.randn(2, 4))
        train(model, optimizer)
    for _ in range(updates):
        average.update_parameters(model)
    assert said(watch) == told
