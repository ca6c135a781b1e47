"""Batches of any make: the leaves of one with the way to them, and the same batch with its leaves changed.

Mappings, sequences and named tuples are opened, and so are objects that carry their tensors as attributes: dataclasses,
graph data, whatever a collate function makes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

from ...detect.tensors.foreign_objects import getattr, hasattr, isinstance, items_in, values_in
from ...detect.tensors.torch_private import SUPPORTED_NODES

_MAX_DEPTH = 6
_LEAVES = (str, bytes, int, float, complex, type(None), torch.Tensor, torch.nn.Module, type, torch.dtype, torch.device)


def walk_batch(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every leaf of a batch with its key: `x`, `inputs.mask`, `0`."""
    parts = parts_of(value) if depth < _MAX_DEPTH else None
    if parts is None:
        yield path, value
        return
    for key, item in parts:
        yield from walk_batch(item, f"{path}.{key}" if path else str(key), depth + 1)


def parts_of(value: Any) -> list[tuple[Any, Any]] | None:
    """What a container or an object is made of; None for a leaf."""
    if isinstance(value, _LEAVES):
        return None
    if isinstance(value, Mapping):
        return items_in(value) or ([] if type(value) is dict else None)
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    attributes = _attributes(value)
    return list(attributes.items()) if attributes else None


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object that carries tensors, at whatever depth; nothing of any other object."""
    if callable(value):
        return {}
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name)]
    found = {name: getattr(value, name) for name in slots if isinstance(name, str) and name != "__weakref__"}
    found |= getattr(value, "__dict__", {})
    return found if any(_carries(item, 2) for item in found.values()) else {}


def _carries(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if depth == 0 or isinstance(value, _LEAVES):
        return False
    if isinstance(value, Mapping):
        return any(_carries(item, depth - 1) for item in values_in(value))
    if isinstance(value, list | tuple):
        return any(_carries(item, depth - 1) for item in value)
    return not callable(value) and any(_carries(item, depth - 1) for item in getattr(value, "__dict__", {}).values())


def map_batch(value: Any, change: Callable[[Any], Any], depth: int = 0) -> Any:
    """The same batch with every leaf changed. The batch itself stays as it is."""
    parts = parts_of(value) if depth < _MAX_DEPTH else None
    if parts is None:
        return change(value)
    changed = [(key, map_batch(item, change, depth + 1)) for key, item in parts]
    return rebuilt(value, changed)


def rebuilt(value: Any, parts: list[tuple[Any, Any]]) -> Any:
    """A container or object like this one, made of these parts."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(item for _, item in parts))
    if isinstance(value, list | tuple):
        return type(value)([item for _, item in parts])
    if isinstance(value, Mapping) and (type(value) is dict or not isinstance(value, MutableMapping)):
        return _as_registered(value, parts) if type(value) in SUPPORTED_NODES else dict(parts)
    own = copy.copy(value)
    for key, item in parts:
        if isinstance(own, MutableMapping):
            own[key] = item
        else:
            object.__setattr__(own, key, item)
    return own


def _as_registered(value: Any, parts: list[tuple[Any, Any]]) -> Any:
    """A mapping of a kind that torch was told how to take apart and put together keeps its kind."""
    node = SUPPORTED_NODES[type(value)]
    _, about = node.flatten_fn(value)
    return node.unflatten_fn([item for _, item in parts], about)


def narrow(value: Any, rows: list[int], size: int, each: int = 1) -> Any:
    """Whatever is `size` long along its first side, with these rows of it only.

    A tensor whose second side is that long and whose first is not has its rows there: time first, then the batch. One
    that is `each` times as long has so many places for each row, one behind another.
    """
    if isinstance(value, torch.Tensor):
        if value.dim() and value.shape[0] == size:
            return value[rows]
        if each > 1 and value.dim() and value.shape[0] == size * each:
            return value[[row * each + place for row in rows for place in range(each)]]
        return value[:, rows] if value.dim() > 1 and value.shape[1] == size else value
    parts = parts_of(value)
    if parts is None:
        return value
    named = isinstance(value, tuple) and hasattr(value, "_fields")
    whole = isinstance(value, list | tuple) and not named and len(value) == size
    if whole and not any(isinstance(item, torch.Tensor) for item in value):
        return type(value)(value[row] for row in rows)
    return rebuilt(value, [(key, narrow(item, rows, size, each)) for key, item in parts])
