"""Whether the coming update deserves a closer look, by what can be known without reading a tensor.

An update goes wrong by itself, with a finite loss and finite gradients, where something is new to it: state that was
loaded or written from outside, parameters that get a gradient for the first time, a learning rate that is no number.
Then everything is copied once, the update is made, looked at, and undone if it made a weight bad. In all other steps
this costs a few comparisons; nothing here syncs with a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

MOST_TENSORS = 2048
"""Past so many tensors of state, looking at the version of each takes too long to be done in every step."""


class Unease:
    """Asked before an update (`due`) and told after it (`note`). `versions` says whether state is on the host, where
    a step is slow enough that the version of every tensor of state can be looked at."""

    def __init__(self, optimizers: Sequence[Optimizer], *, versions: bool) -> None:
        self._optimizers = optimizers
        self._versions = versions
        self._loaded = False
        self._with_gradient: tuple[int, ...] | None = None
        self._mark: tuple[int, ...] | None = None
        self._most_gradients = 0
        for optimizer in optimizers:
            optimizer.register_load_state_dict_post_hook(self._note_load)

    def _note_load(self, _optimizer: Optimizer) -> None:
        self._loaded = True

    @property
    def wants_host(self) -> bool:
        """Whether the host must be there when the next update is made, also where it could be settled late."""
        return self._loaded or not self._options_are_numbers()

    def due(self, with_gradient: tuple[int, ...]) -> bool:
        """Whether something is new to this update. `with_gradient` are the places of the parameters that have one."""
        if self._with_gradient is None or not set(with_gradient) <= set(self._with_gradient) or self.wants_host:
            return True
        if self._versions and self._num_gradients() > self._most_gradients:
            return True  # a part that was frozen learns
        return self._mark is not None and self._mark != self._marked()

    def _num_gradients(self) -> int:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return sum(parameter.grad is not None for group in groups for parameter in group["params"])

    def note(self, with_gradient: tuple[int, ...]) -> None:
        """An update has landed, and the gradients are still there: what it left is known."""
        if self._versions:
            self._most_gradients = max(self._most_gradients, self._num_gradients())
        self._loaded = False
        if with_gradient != self._with_gradient:
            self._with_gradient = tuple(sorted({*(self._with_gradient or ()), *with_gradient}))
        self._mark = self._marked()

    def _options_are_numbers(self) -> bool:
        return all(
            math.isfinite(value)
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for value in _numbers(group)
        )

    def _marked(self) -> tuple[int, ...] | None:
        """Which tensors of state there are and how often they were written."""
        if not self._versions:
            return None
        tensors = [
            value
            for optimizer in self._optimizers
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        if len(tensors) > MOST_TENSORS or any(tensor.is_inference() for tensor in tensors):
            self._versions = False
            return None
        return len(tensors), sum(map(id, tensors)), sum(tensor._version for tensor in tensors)


def _numbers(group: dict[str, Any]) -> list[float]:
    """The options of a parameter group that are plain numbers. A tensor on a device is not read."""
    found: list[float] = []
    for key, value in group.items():
        if key != "params":
            found += [item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, float)]
    return found
