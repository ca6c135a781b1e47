"""The whole step in another precision: autocast overridden, half-precision weights, moments and inputs widened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp.autocast_mode import autocast
from torch.utils._pytree import tree_map

from ..patient import Patient
from ..replay import Change

_HALF = (torch.float16, torch.bfloat16)


class Precision(Change):
    """Run everything in `dtype`. float32 and float64 switch autocast off; bfloat16 takes float16's place.

    float64 widens every floating tensor: the reference that other results are measured against.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._weights: list[tuple[torch.Tensor, torch.Tensor]] = []

    def wants(self, dtype: torch.dtype) -> bool:
        if self.dtype is torch.float64:
            return dtype.is_floating_point
        return dtype in _HALF if self.dtype is torch.float32 else dtype is torch.float16

    def around(self) -> Any:
        return overridden_autocast(self.dtype)

    def prepared(self, patient: Patient) -> None:
        # The original storages are kept: undo puts the very same ones back under their parameters.
        for tensor in [*patient.model.parameters(), *patient.model.buffers()]:
            if self.wants(tensor.dtype):
                self._weights.append((tensor, tensor.data))
                grad = tensor.grad
                tensor.grad = None
                tensor.data = tensor.data.to(self.dtype)
                if grad is not None:
                    tensor.grad = grad.to(self.dtype)
        for optimizer in patient.optimizers:
            for state in optimizer.state.values():
                for key, value in list(state.items()):
                    if isinstance(value, torch.Tensor) and value.dim() and self.wants(value.dtype):
                        state[key] = value.to(self.dtype)

    def batch(self, patient: Patient, batch: Any) -> Any:
        return tree_map(
            lambda item: item.to(self.dtype) if isinstance(item, torch.Tensor) and self.wants(item.dtype) else item,
            batch,
        )

    def undo(self, patient: Patient) -> None:
        for tensor, data in reversed(self._weights):
            tensor.grad = None
            tensor.data = data
        self._weights.clear()


@contextmanager
def overridden_autocast(dtype: torch.dtype) -> Iterator[None]:
    """Every autocast entered inside, by whomever, is switched off (wide dtypes) or moved to `dtype`."""
    enter = autocast.__enter__
    changed: list[tuple[autocast, bool, Any]] = []

    def entering(self: autocast) -> Any:
        changed.append((self, self._enabled, self.fast_dtype))
        if dtype in _HALF:
            self.fast_dtype = dtype
        else:
            self._enabled = False
        return enter(self)  # type: ignore[no-untyped-call]

    autocast.__enter__ = entering  # type: ignore[method-assign]
    try:
        yield
    finally:
        autocast.__enter__ = enter  # type: ignore[method-assign]
        for context, enabled, fast in changed:
            context._enabled, context.fast_dtype = enabled, fast
