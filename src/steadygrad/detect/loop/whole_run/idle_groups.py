"""Parameter groups whose rate was zero from the first update to the last, though they got gradients and their weights
are those that an initialisation draws: a freshly made part that was never trained.

A comparison of numbers at an update. Gradients are read once, and weights when the training has ended, where there is
such a group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from ...tensors.readable_tensors import describable

ENOUGH = 20
"""Updates of a training that is judged."""
_LOOK_AT = 5
_MIN_NUMEL, _MAX_NUMEL = 256, 1 << 24
"""So many numbers are needed to tell: in one matrix, or in all of a group of small ones."""
_SIGMAS = 4.0
_GAINS = (1.0, math.sqrt(2.0), 5 / 3)
_NORMAL = (1.0, 0.02, 0.01)
"""Deviations that do not depend on the shape: embeddings, and what language models are drawn with."""


class IdleGroups:
    """One optimizer's groups. Keeps none of it alive."""

    def __init__(self) -> None:
        self.reads = True
        """Whether tensors may be read between two updates; else their weights are read at the end."""
        self._weights: dict[int, list[TensorWeakRef]] = {}
        """Of the idle groups."""
        self._idle: set[int] | None = None
        self._updates = 0
        self._known = False
        """Whether the weights of the idle groups were looked at: without a rate they stay what they are."""

    def before_update(self, optimizer: Optimizer) -> None:
        """Whether gradients come to the groups that have no rate, and what their weights are. Reads both once, where
        there are such groups."""
        if not self._idle or self._updates not in (_LOOK_AT, ENOUGH):
            return
        groups = optimizer.param_groups
        given = {place: list(groups[place]["params"]) for place in self._idle if place < len(groups)}
        if self._updates == _LOOK_AT:
            self._idle = {place for place, each in given.items() if _has_gradients(each, read=self.reads)}
            return
        self._weights = {place: [TensorWeakRef(weight) for weight in each] for place, each in given.items()}
        if self.reads:
            self._look_at_weights()

    def _look_at_weights(self) -> None:
        known = {place: [each() for each in self._weights.get(place, ())] for place in self._idle or ()}
        alive = {place: [weight for weight in each if weight is not None] for place, each in known.items()}
        self._idle = {place for place, each in alive.items() if len(each) == len(known[place]) and as_drawn(each)}
        self._known = True

    def after_update(self, rates: Sequence[float]) -> None:
        """An update was made with these rates."""
        self._updates += 1
        zero = {place for place, rate in enumerate(rates) if rate == 0}
        if self._idle is None or self._idle:
            self._idle = zero if self._idle is None else self._idle & zero
            self._idle = set() if len(zero) == len(rates) else self._idle

    def at_the_end(self) -> tuple[int, ...]:
        """The groups that never had a rate, beside others that always had one."""
        if self._idle and self._weights and not self._known:
            self._look_at_weights()
        return tuple(sorted(self._idle)) if self._idle and self._known else ()

    def holds(self, parameters: Sequence[Tensor]) -> bool:
        """Whether one of these is in an idle group."""
        given = {id(parameter) for parameter in parameters}
        held = (each() for weights in self._weights.values() for each in weights)
        return any(weight is not None and id(weight) in given for weight in held)


@torch.no_grad()
def as_drawn(parameters: Sequence[Tensor]) -> bool:
    """Whether all of these weights are as an initialisation draws them: matrices that fill the range of a uniform
    distribution, or have the deviation and the shape of a normal one; and vectors that are constant or no larger."""
    known = [each.detach() for each in parameters]
    if not all(describable(each) and each.is_floating_point() and each.layout is torch.strided for each in known):
        return False
    matrices = [each for each in known if each.dim() > 1]
    vectors = [each for each in known if each.dim() < 2]
    if not matrices or any(each.numel() > _MAX_NUMEL for each in known):
        return False
    largest = max(float(each.abs().max()) for each in matrices)
    large = [each for each in matrices if each.numel() >= _MIN_NUMEL]
    # Small ones say something only together, and only where they have a bound.
    enough = sum(each.numel() for each in matrices) >= _MIN_NUMEL
    drawn = all(map(_is_drawn, large)) if large else enough and _fill_ranges(matrices)
    return drawn and all(
        bool((each == each.flatten()[:1]).all()) or float(each.abs().max()) <= 1.05 * largest for each in vectors
    )


def _is_drawn(matrix: Tensor) -> bool:
    values = matrix.double().flatten()
    if not 0 < float(values.std()) < math.inf:
        return False
    into, out = _fans(matrix)
    normal = {gain * math.sqrt(1 / fan) for gain in _GAINS for fan in (into, out)}
    normal |= {gain * math.sqrt(2 / (into + out)) for gain in _GAINS} | set(_NORMAL)
    count, spread = len(values), float(values.std())
    near = any(abs(spread / deviation - 1) < _SIGMAS / math.sqrt(2 * count) for deviation in normal)
    return _fill_ranges([matrix]) or (near and _has_shape(values, 3.0, math.sqrt(24 / count)))


def _fill_ranges(matrices: Sequence[Tensor]) -> bool:
    """Whether they are drawn from a uniform distribution, all in the same way: each reaches the bound that its shape
    asks for, and none goes beyond."""
    flat, fans = [each.double().flatten() for each in matrices], [_fans(each) for each in matrices]
    gains = (*_GAINS, math.sqrt(3), 2.0, math.sqrt(6))
    ways = [[gain * math.sqrt(1 / fan[side]) for fan in fans] for gain in gains for side in (0, 1)]
    ways += [[gain * math.sqrt(6 / sum(fan)) for fan in fans] for gain in _GAINS]
    for bounds in ways:
        parts = [values / bound for values, bound in zip(flat, bounds, strict=True)]
        if all(1 - 12 / len(part) <= float(part.abs().max()) <= 1.0001 for part in parts):
            together = torch.cat(parts)
            return _has_shape(together, 1.8, math.sqrt(3.0 / len(together)))
    return False


def _fans(matrix: Tensor) -> tuple[int, int]:
    return matrix[0].numel(), matrix.numel() // matrix.shape[1]


def _has_shape(values: Tensor, shape: float, error: float) -> bool:
    """Whether the mean is zero and the fourth moment that of the distribution, as far as so many values can show."""
    mean, spread = float(values.mean()), float(values.std())
    fourth = float((values - mean).pow(4).mean()) / spread**4
    return abs(mean) <= _SIGMAS * spread / math.sqrt(len(values)) and abs(fourth - shape) < _SIGMAS * error


def _has_gradients(parameters: Sequence[Tensor], *, read: bool) -> bool:
    gradients = [each.grad for each in parameters if each.grad is not None and each.grad.layout is torch.strided]
    return any(not read or bool(gradient.any()) for gradient in gradients)
