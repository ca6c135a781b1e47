"""The whole step in another precision: autocast overridden, half-precision weights, moments and inputs widened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp.autocast_mode import autocast

from ...detect.tensors.foreign_objects import getattr, isinstance
from ...detect.tensors.readable_tensors import can_be_copied
from ...engine.step.trained_parameters import states_of
from ..replay.batch_tree import map_batch
from ..replay.replay_step import ReplayChange
from ..replay.replayable import Replayable
from ..trace.backward_mode import StaysInBackward

_HALF = (torch.float16, torch.bfloat16)


class Precision(ReplayChange):
    """Run everything in `dtype`. float32 and float64 switch autocast off; bfloat16 takes float16's place.

    float64 widens every floating tensor: the reference that other results are measured against. Casts that the
    user's code spells out go along, or they would meet weights of another type.
    """

    def __init__(self, dtype: torch.dtype, *, moments: bool = True) -> None:
        """`moments`: the optimizer's too. They are not needed where no update is made."""
        self.dtype, self._moments = dtype, moments
        self._weights: list[tuple[torch.Tensor, torch.Tensor]] = []

    def wants_cast(self, dtype: torch.dtype) -> bool:
        """Whether a cast to this type in the user's code goes to ours instead. 8-bit floats stay: they are meant."""
        return self.wants(dtype) and dtype.itemsize > 1

    def wants(self, dtype: torch.dtype) -> bool:
        if self.dtype is torch.float64:
            return dtype.is_floating_point
        return dtype in _HALF if self.dtype is torch.float32 else dtype is torch.float16

    @contextmanager
    def around(self) -> Iterator[None]:
        with overridden_autocast(self.dtype), _Casts(self):
            yield

    def prepared(self, replayable: Replayable) -> None:
        # The original storages are kept: undo puts the very same ones back under their parameters.
        for tensor in [*replayable.model.parameters(), *replayable.model.buffers()]:
            if self.wants(tensor.dtype) and can_be_copied(tensor):
                self._weights.append((tensor, tensor.data))
                grad = tensor.grad
                tensor.grad = None
                tensor.data = tensor.data.to(self.dtype)
                if grad is not None:
                    tensor.grad = grad.to(self.dtype)
        for optimizer in replayable.optimizers if self._moments else ():
            for _, state in states_of(optimizer):
                for key, value in list(state.items()):
                    counts = key == "step"  # of a scalar parameter the moments are scalars as well
                    if isinstance(value, torch.Tensor) and not counts and self.wants(value.dtype):
                        state[key] = value.to(self.dtype)

    def batch(self, replayable: Replayable, batch: Any) -> Any:
        def widened(item: Any) -> Any:
            wanted = isinstance(item, torch.Tensor) and self.wants(item.dtype) and can_be_copied(item)
            return item.to(self.dtype) if wanted else item

        return map_batch(batch, widened)

    def undo(self, replayable: Replayable) -> None:
        for tensor, data in reversed(self._weights):
            tensor.grad = None
            tensor.data = data
        self._weights.clear()


# What a method without arguments casts to, and calls in which a type says how to read bits.
_CASTING = {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32, "double": torch.float64}
_READ_BITS = frozenset({"view", "view_dtype", "frombuffer", "from_file"})


class _Casts(StaysInBackward):
    """Casts and constructors that the user's code asks for by name (`.half()`, `.to(torch.bfloat16)`, `dtype=`)."""

    def __init__(self, change: Precision) -> None:
        super().__init__()
        self.change = change

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name in _CASTING and len(args) == 1 and isinstance(args[0], torch.Tensor):
            wanted = self.change.wants_cast(_CASTING[name])
            return args[0].to(self.change.dtype) if wanted else func(*args, **kwargs)
        if name in _READ_BITS:
            return func(*args, **kwargs)
        return func(*(self._other(item) for item in args), **{key: self._other(item) for key, item in kwargs.items()})

    def _other(self, item: Any) -> Any:
        return self.change.dtype if isinstance(item, torch.dtype) and self.change.wants_cast(item) else item


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
