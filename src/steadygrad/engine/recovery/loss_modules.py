"""Modules that a loss function uses besides the model it is given: a critic, a teacher.

They belong to others, and their buffers may move in a forward: where we run a loss again, they are restored after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ...detect.tensors.foreign_objects import getattr, isinstance
from ...detect.tensors.readable_tensors import why_not_read
from ..early_checks.held_state import restore_values

_DEPTH, _ENTRIES = 3, 64


def buffers_beside(loss_fn: Callable[..., Any], model: nn.Module) -> list[Tensor]:
    """The buffers of modules within reach of a loss function that are no part of the model."""
    own = {id(buffer) for buffer in model.buffers()}
    found: dict[int, Tensor] = {}
    for module in _modules(loss_fn, _DEPTH):
        for buffer in module.buffers():
            if id(buffer) not in own and why_not_read(buffer) is None:
                found[id(buffer)] = buffer
    return list(found.values())


def _modules(value: Any, depth: int) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif depth > 0:
        for each in list(_reached(value))[:_ENTRIES]:
            yield from _modules(each, depth - 1)


def _reached(value: Any) -> Iterator[Any]:
    """What a function, an object or a container leads to."""
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif code := getattr(value, "__code__", None):
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:
                continue
        yield from (value.__globals__[name] for name in code.co_names if name in value.__globals__)
        yield getattr(value, "__self__", None)
    elif isinstance(attributes := getattr(value, "__dict__", None), dict) and not isinstance(value, type):
        yield from attributes.values()


@contextmanager
def preserved(buffers: list[Tensor]) -> Iterator[None]:
    """Restore these on leaving, where they changed."""
    then = [(buffer, buffer._version, buffer.detach().clone()) for buffer in buffers]
    try:
        yield
    finally:
        for buffer, version, values in then:
            restore_values(buffer, version, values)
