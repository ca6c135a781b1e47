"""Twins that are truly sick. A guard that left these alone would be one that had been switched off.

`SICK` holds runs that end with a NaN or an infinity when nothing interferes: the guard must refuse something, and what
it leaves behind must be finite. `DIVERGING` is the finite kind: the loss of earlier batches rises by orders of
magnitude and stays there, which has to be reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .blocks import classified, cross_entropy, endless, perceptron, squared_error
from .regimes import REGIMES
from .training import Player, Training, seeded, single

SICK_STEP = 120
"""The update at which a poisoned twin goes wrong."""
DIVERGING_STEP = 200
"""The update from which a diverging twin goes wrong; it takes at most 100 more."""
SICK_STEPS = 500
"""How long a sick twin runs, whatever the healthy ones do."""


def _with_nan_loss(build: Callable[[int], Training]) -> Callable[[int], Training]:
    """The regime, but one batch is multiplied by NaN on its way to the loss; the mark travels with the batch."""

    def sick(seed: int) -> Training:
        training = build(seed)
        at = SICK_STEP * training.accumulate
        marks = (torch.tensor(float("nan") if number == at else 1.0) for number in itertools.count())
        training.batches = zip(training.batches, marks, strict=True)
        training.players = [_marked(player) for player in training.players]
        return training

    sick.__doc__ = f"{build.__name__} with one batch whose loss is NaN."
    return sick


def _marked(player: Player) -> Player:
    inner = player.loss

    def loss(model: nn.Module, batch: Any) -> Tensor:
        batch, mark = batch
        return inner(model, batch) * mark

    return Player(model=player.model, optimizers=player.optimizers, loss=loss, clip=player.clip)


class Careless(Optimizer):
    """Plain gradient descent that divides by zero at one update, although every gradient is finite.

    With `again` it counts its updates in its own state, so that a run taken back to before that update meets it again;
    else it counts its calls and does it once.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, *, again: bool) -> None:
        super().__init__(params, {"lr": lr, "updates": 0})
        self._again, self._calls = again, 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self._calls += 1
        for group in self.param_groups:
            group["updates"] += 1
            number = group["updates"] if self._again else self._calls
            divisor = torch.tensor(0.0 if number == SICK_STEP else 1.0)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad / divisor)


def _careless(seed: int, *, again: bool) -> Training:
    g, model = seeded(seed), perceptron(8, 24, 4, between=nn.ReLU)
    batches = endless(lambda k: classified(g, 16, 8, 4))
    return single(model, Careless(model.parameters(), lr=0.1, again=again), cross_entropy, batches)


def update_divides_by_zero(seed: int) -> Training:
    """Loss and gradients are finite, and one update makes weights of them that are not."""
    return _careless(seed, again=False)


def update_keeps_dividing_by_zero(seed: int) -> Training:
    """The same, and it happens again each time the run is taken back: only a halt with good weights is right."""
    return _careless(seed, again=True)


def weights_overflow(seed: int) -> Training:
    """From one update on the rate is so high that weights, then losses, then everything leaves the range of floats."""
    g, model = seeded(seed), perceptron(6, 24, 24, 1, between=nn.ReLU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def before(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 1e12 if step >= SICK_STEP else 0.01

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(16, 6, generator=g)
        return points, points.abs().sum(1, keepdim=True)

    return single(model, optimizer, squared_error, endless(batch), before=before)


def gradient_of_root(seed: int) -> Training:
    """The loss stays finite; one batch meets the infinite slope of a square root at zero, times zero."""
    g, model = seeded(seed), perceptron(6, 24, 3)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, weight = batch
        out = model(points)
        return (out.square().sum(1) * weight).sqrt().mean() + 0.1 * (out - 1).square().mean()

    def batch(k: int) -> tuple[Tensor, Tensor]:
        return torch.randn(8, 6, generator=g), torch.full((8,), 0.0 if k == SICK_STEP else 1.0)

    return single(model, torch.optim.Adam(model.parameters(), lr=1e-3), loss, endless(batch), clip=1.0)


def rate_a_hundredfold(seed: int) -> Training:
    """From update 200 on the rate is a hundred times what it was: finite, and everything learnt is lost."""
    g, model = seeded(seed), perceptron(4, 32, 1)
    weights = torch.randn(4, 1, generator=g)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def before(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 1.0 if step >= DIVERGING_STEP else 1e-2

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(24, 4, generator=g)
        return points, points @ weights

    return single(model, optimizer, squared_error, endless(batch), before=before)


def exploding_regression(seed: int) -> Training:
    """From update 200 on plain gradient descent grows the error of every batch by a little each time."""
    g, model = seeded(seed), nn.Linear(6, 1)
    weights = torch.randn(6, 1, generator=g)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    def before(step: int) -> None:
        past = step - DIVERGING_STEP
        optimizer.param_groups[0]["lr"] = 0.02 if past < 0 else 1.5 if past < 30 else 1e-5

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(64, 6, generator=g)
        return points, points @ weights + 0.1 * torch.randn(64, 1, generator=g)

    return single(model, optimizer, squared_error, endless(batch), before=before)


_POISONED = ("rare_hard_batches", "heavy_tailed_rewards", "cosine_restarts", "dropped_layers", "bfloat16_autocast",
             "optimizer_fused_adamw")  # fmt: skip
DIVERGING = {build.__name__: build for build in (rate_a_hundredfold, exploding_regression)}
POISONED = {f"nan_in_{name}": _with_nan_loss(REGIMES[name]) for name in _POISONED} | {
    build.__name__: build
    for build in (update_divides_by_zero, update_keeps_dividing_by_zero, weights_overflow, gradient_of_root)
}
SICK = POISONED | DIVERGING
