"""Terms of a loss that were turned into numbers: proven by moving the weights in a replay, at `sg.Guard`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import steadygrad as sg
from steadygrad.checkup.trials.batch_rules import detached_graph
from steadygrad.detect.graph.autograd_graph import walked
from steadygrad.detect.graph.rules.losses.loss_inputs import adds_a_number

Loss = Callable[[nn.Module, Any], Tensor]
_FROZEN = nn.Linear(4, 1).requires_grad_(False)


def error(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.sum(1, keepdim=True)).pow(2).mean()


def penalty(model: nn.Module) -> Tensor:
    return sum((p.pow(2).sum() for p in model.parameters()), torch.zeros(()))


def as_a_number(model: nn.Module, x: Tensor) -> Tensor:
    return error(model, x) + 0.1 * penalty(model).item()


def by_numpy(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    return (out - 1).pow(2).mean() + torch.tensor(out.detach().numpy().std())


def without_create_graph(model: nn.Module, x: Tensor) -> Tensor:
    at = x.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(model(at).sum(), at)
    return 0.5 * (error(model, x) + (slope - 1).pow(2).mean())


def without_gradients(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        more = error(model, x + 1)
    return error(model, x) - more


@pytest.mark.parametrize("loss", [as_a_number, by_numpy, without_create_graph, without_gradients])
def test_a_term_that_is_a_number_and_depends_on_the_weights_is_an_incident(tmp_path: Path, loss: Loss) -> None:
    assert causes(tmp_path, loss) == ["detached_graph"]


def constants(model: nn.Module, x: Tensor) -> Tensor:
    return sum([error(model, x), 0.1 * error(model, x)]) + 1.0 - torch.tensor(0.3)


def of_the_batch(model: nn.Module, x: Tensor) -> Tensor:
    return error(model, x) + x.std()


def drawn(model: nn.Module, x: Tensor) -> Tensor:
    return error(model, x) + torch.rand(())


def of_a_frozen_model(model: nn.Module, x: Tensor) -> Tensor:
    return error(model, x) + error(_FROZEN, x).item()


def on_show(model: nn.Module, x: Tensor) -> Tensor:
    loss = error(model, x)
    return loss + 0.5 * error(model, x + 1).detach()


def another_value(model: nn.Module, x: Tensor) -> Tensor:
    """The gradient is that of the first, the value that of the second."""
    loss = error(model, x)
    return loss + (F.l1_loss(model(x), x[:, :1]) - loss).detach()


def bootstrapped(model: nn.Module, x: Tensor) -> Tensor:
    """The target is the model's own estimate, on purpose: the error is squared."""
    value = model(x).mean()
    return (value - (1.0 + 0.9 * model(x + 1).mean().item())).pow(2)


def weighed(model: nn.Module, x: Tensor) -> Tensor:
    loss = error(model, x)
    return loss / (1.0 + loss.item()) + 1e-3


def straight_through(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    return (out + (out.round() - out).detach() - 1).pow(2).mean() + 0


HEALTHY = [
    constants,
    of_the_batch,
    drawn,
    of_a_frozen_model,
    on_show,
    another_value,
    bootstrapped,
    weighed,
    straight_through,
]


@pytest.mark.parametrize("loss", HEALTHY)
def test_constants_targets_and_what_is_shown_on_purpose_are_left_alone(tmp_path: Path, loss: Loss) -> None:
    assert causes(tmp_path, loss) == []


def test_the_weights_are_the_same_bits_as_without_the_replay(tmp_path: Path) -> None:
    def weights(diagnose: str) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        train(tmp_path / diagnose, as_a_number, model, diagnose)
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert all(map(torch.equal, weights("auto"), weights("off")))


def causes(folder: Path, loss: Loss) -> list[str]:
    torch.manual_seed(0)
    return train(folder, loss, nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), "auto")


def train(folder: Path, loss: Loss, model: nn.Module, diagnose: Any) -> list[str]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with sg.Guard(model, optimizer, loss, run_dir=folder, diagnose=diagnose) as guard:
        for _ in range(10):
            guard.step(torch.randn(8, 4))
    return [incident.diagnosis.cause.slug for incident in guard.incidents if incident.diagnosis]


@pytest.mark.parametrize(
    ("loss", "adds"),
    [
        (lambda x: x.mean() + 1, True),
        (lambda x: 0.5 * (x.sum() - torch.ones(())), True),
        (lambda x: 1 - x.mean(), True),
        (lambda x: x.mean() * 3 + x.std(), False),
        (lambda x: (x.mean() - 1).pow(2), False),
        (lambda x: (x - 1).abs().mean(), False),
        (lambda x: (x - 1).mean(), False),
    ],
)
def test_a_graph_shows_whether_a_number_is_added_to_the_loss(loss: Callable[[Tensor], Tensor], adds: bool) -> None:
    with walked(loss(torch.randn(5, requires_grad=True))) as graph:
        assert adds_a_number(graph) is adds


def test_numbers_that_move_with_the_weights_alone_are_named() -> None:
    assert detached_graph.judge_terms([1.0, 2.0], [1.0, 2.0], [1.0, 2.5]) is not None
    assert detached_graph.judge_terms([1.0, 2.0], [1.0, 2.0], [1.0, 2.0]) is None
    assert detached_graph.judge_terms([1.0, 2.0], [1.0, 2.4], [1.0, 2.5]) is None
    assert detached_graph.judge_terms([1.0], [1.0], [1.0, 2.5]) is None
    assert detached_graph.judge_terms([1.0], [1.0], [float("nan")]) is None
