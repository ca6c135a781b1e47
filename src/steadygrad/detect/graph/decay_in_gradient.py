"""Whether decay that an optimizer adds to the gradient, and divides by its size with it, is what moves the weights.

Such an update has one size, whatever pulls: where decay is larger than the gradient of the loss, every step takes the
whole rate off the weight. Looks at the weights twice, and only where a trial step shows such an optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from ..tensors.readable_tensors import has_values
from .graph_findings import read

_TIMES = 2.0
"""Decay is so many times the gradient, at both looks."""
_HALF = 0.5
"""So much of what decay alone would have taken is gone, for so much of the group."""

_KNOWN = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

Step = Callable[[Optimizer, Mapping[str, Any], float, float], float | None]


@dataclass(slots=True)
class _Seen:
    """One weight at the first look."""

    weight: TensorWeakRef
    size: float
    above: bool
    """Decay is larger than the gradient by far."""


class DecayInGradient:
    """The groups of one run whose decay is divided by the size of the gradient. Keeps nothing alive."""

    def __init__(self) -> None:
        self._first: list[tuple[weakref.ref[Optimizer], int, float, int, list[_Seen]]] = []

    @torch.no_grad()
    def first(self, optimizers: Sequence[Optimizer], update: int, step: Step) -> None:
        """The first look. Reads the device where there is such a group."""
        divided: dict[tuple[Any, ...], bool] = {}
        for number, optimizer in enumerate(optimizers):
            for place, group in enumerate(optimizer.param_groups):
                key = (number, *sorted((k, repr(v)) for k, v in group.items() if k != "params"))
                if key not in divided:
                    divided[key] = _is_divided(optimizer, group, step)
                if not divided[key]:
                    continue
                weights = _weights(group)
                found = _sizes(weights, group)
                seen = [
                    _Seen(TensorWeakRef(weight), size, above)
                    for weight, (size, above) in zip(weights, found, strict=True)
                ]
                if _share(seen, [each.above for each in seen]) >= _HALF:
                    self._first.append((weakref.ref(optimizer), place, float(group["lr"]), update, seen))

    @torch.no_grad()
    def later(self, update: int) -> tuple[Optimizer, int, list[Tensor], float] | None:
        """The second look: optimizer, group, its weights that shrink, and the rate; None where decay does not rule."""
        groups, self._first = self._first, []
        for reference, place, rate, since, seen in groups:
            optimizer = reference()
            if optimizer is None or place >= len(optimizer.param_groups):
                continue
            group = optimizer.param_groups[place]
            weights = [each.weight() for each in seen]
            alive = [weight for weight in weights if weight is not None and weight.grad is not None]
            if len(alive) < len(seen):
                continue
            mean = (rate + float(group["lr"])) / 2
            now = _sizes(alive, group)
            shrunk = [
                before.above and above and before.size - size >= _HALF * min(mean * (update - since), before.size)
                for before, (size, above) in zip(seen, now, strict=True)
            ]
            if mean > 0 and _share(seen, shrunk) >= _HALF:
                return optimizer, place, [w for w, lost in zip(alive, shrunk, strict=True) if lost], mean
        return None


def _is_divided(optimizer: Optimizer, group: Mapping[str, Any], step: Step) -> bool:
    """Whether a step with a gradient of zero takes the same amount off weights of any size."""
    numbers = isinstance(group.get("lr"), int | float) and isinstance(group.get("weight_decay"), int | float)
    if not numbers or group["weight_decay"] <= 0:
        return False
    one, large = step(optimizer, group, 1.0, 0.0), step(optimizer, group, 1000.0, 0.0)
    if one is None or large is None or one >= 1.0:
        return False
    return abs((1000.0 - large) - (1.0 - one)) <= 0.05 * (1.0 - one)


def _weights(group: Mapping[str, Any]) -> list[Tensor]:
    return [
        each
        for each in group["params"]
        if each.grad is not None and each.grad.layout is torch.strided
        and has_values(each.detach()) and has_values(each.grad)
        and each.dtype in _KNOWN and each.grad.dtype in _KNOWN
    ]  # fmt: skip


def _sizes(weights: Sequence[Tensor], group: Mapping[str, Any]) -> list[tuple[float, bool]]:
    """For each weight its mean magnitude, and whether its decay is larger than its gradient."""
    numbers = read(
        [_mean(each) for each in weights] + [_rms(each) for each in weights] + [_rms(w.grad) for w in weights]
    )
    count, decay = len(weights), float(group["weight_decay"])
    return [
        (numbers[place], decay * numbers[count + place] > _TIMES * numbers[2 * count + place]) for place in range(count)
    ]


def _share(seen: Sequence[_Seen], chosen: Sequence[bool]) -> float:
    counts = [0 if (weight := each.weight()) is None else weight.numel() for each in seen]
    return sum(count for count, true in zip(counts, chosen, strict=True) if true) / max(1, sum(counts))


def _mean(tensor: Any) -> Tensor:
    found: Tensor = _norm(tensor, 1) / max(1, tensor.numel())
    return found


def _rms(tensor: Any) -> Tensor:
    found: Tensor = _norm(tensor, 2) / max(1.0, tensor.numel() ** 0.5)
    return found


def _norm(tensor: Tensor, order: int) -> Tensor:
    """Without a copy of the tensor: it may be large."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    found: Tensor = torch.linalg.vector_norm(tensor.detach(), order, dtype=wide)
    return found.float()
