"""Whether an optimizer's step leaves weights as they were although they have a gradient and a rate: what it computes is
written somewhere else.

Looks at the first updates of optimizers that are not torch's own, in host memory, and at a weight only until it was
moved once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...tensors.foreign_objects import isinstance
from ...tensors.nested_tensors import tensors_in
from ...tensors.readable_tensors import describable

_FEW, _MANY = 3, 9
"""Updates that are enough where other weights are moved or the gradient is gone, and where an update may come later."""
_MAX_NUMEL, _MAX_WEIGHTS = 1 << 16, 256
_KNOWN = ("param_groups", "state", "defaults")

Marks = frozenset[tuple[int, int]]


class UnmovedWeights:
    """`found` are the weights whose updates are lost, by identity, once that is certain."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.done = type(optimizer).__module__.startswith("torch.optim")
        self.found: tuple[int, ...] = ()
        self._still: dict[int, int] = {}
        self._moved: set[int] = set()
        self._always: set[int] | None = None
        """Weights that every update so far has moved."""
        self._keeps = False
        """Whether an update may have been put off: the optimizer wrote to something that it keeps."""
        self._before: list[tuple[Tensor, Tensor, Tensor]] = []
        """Weights, what they were, and what a plain step would take off them."""
        self._looks = 0
        self._marks: Marks = frozenset()

    def before_update(self, optimizer: Optimizer, *, kept: bool) -> None:
        """`kept`: the gradients of the update before are still there."""
        if self.done:
            return
        self._keeps |= kept
        self._marks = _marks(optimizer)
        weights = [
            (weight, float(group["lr"]))
            for group in optimizer.param_groups
            for weight in group["params"]
            if isinstance(group.get("lr"), int | float)
        ]
        self._before = [
            (weight, weight.detach().clone(), rate * weight.grad.detach())
            for weight, rate in weights
            if self._judged(weight, rate)
        ]

    def _judged(self, weight: Tensor, rate: float) -> bool:
        gradient = weight.grad
        if rate <= 0 or gradient is None or gradient.layout is not torch.strided or not describable(weight):
            return False
        exact = weight.dtype in (torch.float32, torch.float64) and gradient.dtype is weight.dtype
        if not exact or weight.device.type != "cpu" or weight.numel() > _MAX_NUMEL or len(self._still) > _MAX_WEIGHTS:
            return False
        return _shows(weight.detach(), rate * gradient.detach())

    def after_update(self, optimizer: Optimizer) -> None:
        before, self._before = self._before, []
        if self.done or not before:
            return
        moved = {id(weight) for weight, then, _ in before if not torch.equal(weight.detach(), then)}
        self._moved |= moved
        self._always = moved if self._always is None else self._always & moved
        self._keeps |= _marks(optimizer) != self._marks
        # An optimizer may begin with a small part of the rate: what that part changes must be large enough to be seen.
        part = min((_part(*each) for each in before if id(each[0]) in moved), default=1.0)
        for weight, then, step in before:
            shows = id(weight) in moved or _shows(then, min(part, 1.0) * step)
            self._still[id(weight)] = self._still.get(id(weight), 0) + shows
        self._looks += 1
        still = {key: times for key, times in self._still.items() if key not in self._moved}
        enough = _FEW if self._always or not self._keeps else _MANY
        self.found = tuple(key for key, times in still.items() if times >= enough)
        self.done = bool(self.found) or not still or self._looks >= _MANY


def _shows(weight: Tensor, step: Tensor) -> bool:
    """Whether a step changes any element."""
    return not torch.equal(weight - step, weight)


def _part(weight: Tensor, then: Tensor, step: Tensor) -> float:
    """What was taken off a weight, as a part of what a plain step takes off."""
    return float((weight.detach() - then).abs().max() / step.abs().max())


def _marks(optimizer: Optimizer) -> Marks:
    """Everything that the optimizer keeps besides its weights, by identity and version."""
    own = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    attributes = [value for key, value in vars(optimizer).items() if key not in _KNOWN and not key.startswith("_")]
    kept: list[Any] = [value for value in attributes if isinstance(value, Tensor | dict | list | tuple)]
    kept += [state for state in optimizer.state.values() if isinstance(state, dict)]
    return frozenset((id(tensor), tensor._version) for tensor in tensors_in(kept) if id(tensor) not in own)
