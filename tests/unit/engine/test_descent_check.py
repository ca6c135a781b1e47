"""A rise of the loss is acted on only where the loss is what the gradients descend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.engine.recovery.divergence.descent_check import descends
from steadygrad.engine.state.batch_buffer import by_step

Loss = Callable[[nn.Module, Tensor], Tensor]


def network(width: int = 4, *, between: type[nn.Module] = nn.Tanh, out: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 16), between(), nn.Linear(16, out))


def regression(model: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(model(x), x[:, :2] * x[:, 2:])


def classes(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), (x[:, 0] > 0).long())


def own_estimate(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        wanted = 1.0 + 0.9 * model(x.roll(1, 0)).amax(1)
    return F.mse_loss(model(x)[:, 0], wanted)


def against_itself(model: nn.Module, x: Tensor) -> Tensor:
    mine = model(x).softmax(-1)
    return -(mine * mine.detach().roll(1, 0)).sum(-1).mean()


def rounded(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x)
    return F.mse_loss(y + (y.round() - y).detach(), x[:, :2])


def two_players(model: Any, x: Tensor) -> Tensor:
    judge, maker = model["judge"], model["maker"]
    frozen = {name: value.detach() for name, value in judge.named_parameters()}
    judged = F.softplus(-judge(x)).mean() + F.softplus(judge(maker(x).detach())).mean()
    return judged + F.softplus(-torch.func.functional_call(judge, frozen, (maker(x),))).mean()


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return -grad


def turned_around(model: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(Turned.apply(model(x)), x[:, :2])


class Looked(nn.Module):
    """Rows of a table, some of them, with sparse gradients, and a part that is zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 4, sparse=True)
        self.head = nn.Linear(4, 2)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table((x[:, 0].abs() * 5).long()))


def pair() -> nn.Module:
    return nn.ModuleDict({"judge": network(out=1), "maker": network(out=4)})


def seen(model: nn.Module, loss: Loss, optimizer: Any = torch.optim.SGD, **options: Any) -> tuple[bool, bool]:
    """Whether the gradients of two steps are those of the loss, and whether the look left all bits as they were."""
    generator = torch.Generator().manual_seed(3)
    accumulate = options.get("accumulate", 1)
    with sg.Guard(model, optimizer(model.parameters(), lr=1e-2), loss, diagnose="off", **options) as guard:
        for _ in range(4 * accumulate):
            guard.step(torch.randn(12, 4, generator=generator))
        recovery = guard._loop.recovery
        steps = by_step(recovery._batch_buffer.unchanged())[:2]
        before = [value.clone() for value in model.state_dict().values()], torch.get_rng_state()
        with recovery.rate_trial.aside():
            answer = descends(recovery.rate_trial._program, steps)
        after = [*model.state_dict().values()], torch.get_rng_state()
    same = all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True)) and torch.equal(before[1], after[1])
    return answer, same


PROPER = {
    "regression": (network, regression, {}),
    "classes": (network, classes, {}),
    "kinks": (lambda: network(between=nn.ReLU), regression, {}),
    "windows": (network, regression, {"accumulate": 3}),
    "dropout": (lambda: nn.Sequential(network(out=8), nn.Dropout(0.3), nn.Linear(8, 2)), regression, {}),
    "batch norm": (lambda: nn.Sequential(network(out=8), nn.BatchNorm1d(8), nn.Linear(8, 2)), regression, {}),
    "sparse gradients": (Looked, classes, {}),
    "bf16 autocast": (network, classes, {"precision": "bf16"}),
    "doubles": (lambda: network().double(), lambda model, x: regression(model, x.double()), {}),
}
OTHER = {
    "own estimate": (network, own_estimate, {}),
    "own estimate in windows": (network, own_estimate, {"accumulate": 3}),
    "own estimate in bf16": (network, own_estimate, {"precision": "bf16"}),
    "against itself": (network, against_itself, {}),
    "rounded": (network, rounded, {}),
    "two players": (pair, two_players, {}),
    "turned around": (network, turned_around, {}),
}


@pytest.mark.parametrize("name", PROPER)
def test_the_gradients_of_a_loss_are_known_as_such_and_all_is_left_as_it_was(name: str) -> None:
    build, loss, options = PROPER[name]
    assert seen(build(), loss, **options) == (True, True)  # type: ignore[operator,arg-type]


@pytest.mark.parametrize("name", OTHER)
def test_gradients_that_hold_a_part_of_the_loss_fixed_are_known_as_such(name: str) -> None:
    build, loss, options = OTHER[name]
    assert seen(build(), loss, **options) == (False, True)  # type: ignore[operator,arg-type]


def test_without_a_gradient_it_cannot_be_seen() -> None:
    assert seen(network(), lambda model, x: 0.0 * regression(model, x)) == (False, True)


def test_values_that_are_learnt_from_their_own_estimate_grow_undisturbed() -> None:
    def train(guarded: bool) -> list[Tensor]:
        model, generator = network(between=nn.ReLU), torch.Generator().manual_seed(0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        guard = sg.Guard(model, optimizer, own_estimate) if guarded else None
        for _ in range(600):
            batch = torch.randn(24, 4, generator=generator)
            if guard is not None:
                guard.step(batch)
                continue
            own_estimate(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        if guard is not None:
            guard.close()
            assert guard.incidents == []
            assert guard.summary()["rolled_back"] == 0
        return [parameter.detach() for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(train(True), train(False), strict=True))
