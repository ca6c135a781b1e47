"""What the modules of a model hold besides weights, buffers and submodules, so that it can be restored after a call."""

from __future__ import annotations

import functools
import io
import logging
import random
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ...detect.tensors.foreign_objects import hasattr, isinstance
from ...detect.tensors.readable_tensors import why_not_read, write_values
from ..recovery.preserved_attributes import preserved_attributes

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type, Enum, ModuleType, BuiltinFunctionType,
    torch.dtype, torch.device, torch.layout, torch.memory_format, weakref.ref,
)  # fmt: skip
_HIDDEN = (nn.Module, torch.Generator, io.IOBase, logging.Logger, random.Random, Iterator)
"""Objects whose state a walk over attributes does not show, or that belong to someone else."""
_MAX_VALUES = 20_000
_MAX_BYTES = 64 << 20


class HeldState:
    """Everything that a model's own attributes lead to. `unknown` is a kind of object that could not be restored."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.objects: list[Any] = []
        self.tensors: list[Tensor] = []
        self.functions: list[FunctionType] = []
        self.unknown: str | None = None
        self._seen: set[int] = set()
        waiting: list[Any] = []
        for part in model.modules():
            self._seen.update(map(id, part._buffers.values()))
            waiting += [value for name, value in vars(part).items() if name not in _OF_EVERY_MODULE]
        while waiting and self.unknown is None:
            try:
                waiting += self._look_at(value := waiting.pop())
            except Exception:
                self.unknown = f"an object of type {type(value).__name__}"
        if sum(tensor.numel() * tensor.element_size() for tensor in self.tensors) > _MAX_BYTES:
            self.unknown = "large tensors that are not buffers"

    def _look_at(self, value: Any) -> list[Any]:
        """Enter one value; what it leads to."""
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return []
        self._seen.add(id(value))
        if len(self._seen) > _MAX_VALUES:
            self.unknown = "very many objects"
        elif isinstance(value, Tensor):
            if why_not_read(value) is None:
                self.tensors.append(value)
            else:
                self.unknown = "a tensor that cannot be copied"
        elif isinstance(value, FunctionType):
            self.functions.append(value)
        elif isinstance(value, MethodType):
            return [value.__func__, *([] if isinstance(value.__self__, nn.Module) else [value.__self__])]
        elif isinstance(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, Mapping):
            return [*value.values(), *vars(value).values()] if hasattr(value, "__dict__") else [*value.values()]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            return [*value]
        elif isinstance(value, _HIDDEN) or not hasattr(value, "__dict__"):
            self.unknown = f"an object of type {type(value).__name__}"
        else:
            self.objects.append(value)
            return [*vars(value).values()]
        return []

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore all of it on leaving: references, contents of containers, and the values of tensors."""
        then = [(tensor, tensor._version, tensor.detach().clone()) for tensor in self.tensors]
        with preserved_attributes((self.model, *self.objects)):
            try:
                yield
            finally:
                for tensor, version, values in then:
                    restore_values(tensor, version, values)


def restore_values(tensor: Tensor, version: int, values: Tensor) -> None:
    """Write the values back where they changed. One that did not change keeps its version."""
    if tensor._version != version or not torch.equal(tensor, values):
        with torch.no_grad():
            write_values(tensor, values)
