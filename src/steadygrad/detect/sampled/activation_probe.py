"""How large the modules' outputs are at a sampled step, through hooks that are there for that step only.

Measures, never judges. A hook adds one reduction over the output and changes nothing about it. Compiled models are
left alone: a hook would force a new compilation.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..tensors.foreign_objects import getattr, hasattr, isinstance
from ..tensors.living_objects import compiled_around
from ..tensors.quiet_hook import Handle, QuietHook, registered
from ..tensors.readable_tensors import has_values
from .parameter_measurement import absmax
from .sample_helpers import ActivationNumbers


@dataclass(slots=True)
class SeenActivation:
    """What the hooks of one forward saw: the modules that were called, and the largest magnitude of each output."""

    ran: set[str] = field(default_factory=set)
    absmax: dict[tuple[str, torch.dtype], Tensor] = field(default_factory=dict)

    def vitals(self, absmax: Sequence[Sequence[float]]) -> tuple[ActivationNumbers, ...]:
        """As plain numbers, from what `absmax` came back as, in its order."""
        return tuple(
            ActivationNumbers(module=name, dtype=str(dtype).removeprefix("torch."), absmax=value)
            for (name, dtype), (value,) in zip(self.absmax, absmax, strict=True)
        )


class ActivationProbe:
    """Hooks on every module of `model` between `attach` and `detach`. Nothing waits for the device."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._handles: list[Handle] = []
        self._seen: SeenActivation | None = None
        self._fault: Exception | None = None

    @property
    def attached(self) -> bool:
        """Whether any hook is on the model."""
        return bool(self._handles)

    def attach(self) -> None:
        """Put the hooks on and start anew; does nothing if the model or a part of it is compiled."""
        model = self._model()
        if model is None or is_compiled(model):
            return
        self._seen = SeenActivation()
        if not self._handles:
            for name, module in model.named_modules():
                self._handles.append(
                    registered(
                        module.register_forward_hook, QuietHook(functools.partial(self.measure, name), self.failed)
                    )
                )

    def detach(self) -> None:
        """Take the hooks off; what they saw is kept until `take`."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def take(self) -> SeenActivation | None:
        """What was seen since `attach`, given away; None if no hook was on. Raises what failed in a hook."""
        seen, self._seen = self._seen, None
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
        return seen

    def measure(self, name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        """What a hook calls."""
        if (seen := self._seen) is None:
            return
        seen.ran.add(name)
        with torch.no_grad():
            for tensor in _tensors(output):
                _note(seen, (name, tensor.dtype), tensor)

    def failed(self, fault: Exception) -> None:
        """Keep what broke in a hook for `take`; nothing more is measured in this forward."""
        self._fault, self._seen = fault, None


def _note(seen: SeenActivation, key: tuple[str, torch.dtype], tensor: Tensor) -> None:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if not has_values(local) or not local.is_floating_point():
        return
    largest = absmax(local.detach())
    known = seen.absmax.get(key)
    seen.absmax[key] = largest if known is None else torch.maximum(known.to(largest.device), largest)


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, a part of it or something around it is compiled: a hook that is added or removed would compile
    it anew."""
    inside = (
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
    return any(inside) or bool(compiled_around(model))


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)
