"""How large the modules' outputs are at a sampled step, through hooks that are there for that step only.

Measures, never judges. A hook adds one reduction over the output and changes nothing about it. Compiled models are
left alone: a hook would force a new compilation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .sampling import ActivationVitals


class ActivationProbe:
    """Hooks on every module of `model` between `attach` and `detach`. Nothing waits for the device."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[RemovableHandle] = []
        self._absmax: dict[tuple[str, torch.dtype], Tensor] = {}
        self._ran: set[str] | None = None

    @property
    def attached(self) -> bool:
        return bool(self._handles)

    def attach(self) -> None:
        """Put the hooks on; does nothing if they are on, or if the model or a part of it is compiled."""
        if self._handles or _is_compiled(self._model):
            return
        self._absmax.clear()
        self._ran = set()
        for name, module in self._model.named_modules():
            self._handles.append(module.register_forward_hook(self._hook(name)))

    def detach(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str) -> Any:
        def measure(module: nn.Module, inputs: Any, output: Any) -> None:
            if self._ran is not None:
                self._ran.add(name)
            with torch.no_grad():
                for tensor in _tensors(output):
                    self._note((name, tensor.dtype), tensor.detach())

        return measure

    def _note(self, key: tuple[str, torch.dtype], tensor: Tensor) -> None:
        if not tensor.is_floating_point() or tensor.numel() == 0:
            return
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        absmax = torch.linalg.vector_norm(local, math.inf).float()
        known = self._absmax.get(key)
        self._absmax[key] = absmax if known is None else torch.maximum(known.to(absmax.device), absmax)

    def absmax(self) -> list[Tensor]:
        """The largest magnitude of each module's output since `attach`; on the device."""
        return list(self._absmax.values())

    def ran(self) -> frozenset[str] | None:
        """The modules that were called since `attach`; None if no hook was on."""
        return None if self._ran is None else frozenset(self._ran)

    def vitals(self, absmax: Sequence[Sequence[float]]) -> tuple[ActivationVitals, ...]:
        """The same as plain numbers, from what `absmax` came back as."""
        return tuple(
            ActivationVitals(module=name, dtype=str(dtype).removeprefix("torch."), absmax=value)
            for (name, dtype), (value,) in zip(self._absmax, absmax, strict=True)
        )

    def forget(self) -> None:
        """Drop what was seen."""
        self._absmax.clear()
        self._ran = None


def _is_compiled(model: nn.Module) -> bool:
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)
