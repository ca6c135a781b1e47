"""User objects as they were: replays run the user's own code again, and what it counts and collects must not show it.

Lists, dicts, sets, deques, arrays of numpy, numbers, strings and references held as attributes are recorded by value,
containers inside containers too, and restored in place: whoever else holds the same list sees the same contents as
before.
"""

from __future__ import annotations

import operator
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from ...detect.tensors.foreign_objects import getattr, isinstance

_DEPTH = 4
MAX_ENTRIES = 1_000_000
"""A container longer than this is not copied: if it grew at its end it is cut to its length."""
_MOST_BYTES = 16 << 20
"""An array larger than this is not copied."""
_CONTAINERS = (list, dict, set, deque, bytearray)
_KEPT_ELSEWHERE = frozenset({"_parameters", "_buffers", "_modules"})
"""Tables of a module that a diagnosis restores with their tensors."""


@contextmanager
def preserved_attributes(objects: Iterable[Any]) -> Iterator[None]:
    """Restore the attributes of these objects on leaving: what they refer to, and the contents of plain containers.

    A module stands for all modules inside it. Objects without a `__dict__` are passed over. Tensors are not copied: an
    attribute that referred to a tensor refers to the same one again. Weights and buffers without data, of lazy modules
    that were not called yet, are taken out until then: they cannot be read, copied or restored.
    """
    objects = list(objects)
    modules = [part for each in objects if isinstance(each, nn.Module) for part in each.modules()]
    homes: list[dict[str, Any]] = [home for module in modules for home in (module._parameters, module._buffers)]
    waiting = [(home, name, tensor) for home in homes for name, tensor in home.items() if is_lazy(tensor)]
    for home, name, _ in waiting:
        home[name] = None
    restore = record_attributes(objects)
    try:
        yield
    finally:
        restore()
        for home, name, tensor in waiting:
            home[name] = tensor


def record_attributes(objects: Iterable[Any]) -> Callable[[], None]:
    """Record the attributes of these objects; the function that is returned restores them, as often as it is called."""
    seen: set[int] = set()
    undo: list[Callable[[], None]] = []
    for each in objects:
        if isinstance(each, nn.Module):
            undo.append(_types(each))
        for owner in each.modules() if isinstance(each, nn.Module) else (each,):
            table = getattr(owner, "__dict__", None)
            if not isinstance(table, dict) or id(owner) in seen:
                continue
            seen.add(id(owner))
            undo.append(_attributes(table))
            for name, value in table.items():
                if name not in _KEPT_ELSEWHERE:
                    _record(value, _DEPTH, seen, undo)

    def restore() -> None:
        for step in undo:
            step()

    return restore


def _types(module: nn.Module) -> Callable[[], None]:
    """A weight or buffer that was run in another type has its own data again, should its intervention fail to."""
    then = [(tensor, tensor.data) for tensor in (*module.parameters(), *module.buffers())]

    def restore() -> None:
        for tensor, data in then:
            if tensor.dtype is not data.dtype:
                tensor.grad = None
                tensor.data = data

    return restore


def _attributes(table: dict[str, Any]) -> Callable[[], None]:
    then = dict(table)

    def restore() -> None:
        for name in [name for name in table if name not in then]:
            del table[name]
        for name, value in then.items():
            if table.get(name, table) is not value:
                table[name] = value

    return restore


def _record(value: Any, depth: int, seen: set[int], undo: list[Callable[[], None]]) -> None:
    """Record an array, or a plain container and those inside it. Anything else is left alone."""
    if is_array(value) and id(value) not in seen and value.nbytes <= _MOST_BYTES:
        seen.add(id(value))
        undo.append(content_of_array(value))
        return
    if not isinstance(value, _CONTAINERS) or id(value) in seen or depth == 0:
        return
    seen.add(id(value))
    if len(value) > MAX_ENTRIES:
        undo.append(_cut(value))
        return
    undo.append(_contents(value))
    if not isinstance(value, set | bytearray):
        items = dict.values(value) if isinstance(value, dict) else value
        if any(
            issubclass(kind, (*_CONTAINERS, *_arrays())) for kind in set(map(type, items))
        ):  # no call for each number
            for item in items:
                _record(item, depth - 1, seen, undo)


def _contents(value: Any) -> Callable[[], None]:
    if isinstance(value, dict):
        return _entries(value)
    then = value.copy() if isinstance(value, set | bytearray) else list(value)

    def restore() -> None:
        if _same(value, then):
            return
        value.clear()
        if isinstance(value, set):
            value.update(then)
        else:
            value.extend(then)

    return restore


def _entries(value: dict[Any, Any]) -> Callable[[], None]:
    # Past what a subclass makes of its entries, but not past the order that an OrderedDict keeps.
    kind: type[dict[Any, Any]] = OrderedDict if isinstance(value, OrderedDict) else dict
    keys, entries = list(kind.keys(value)), list(kind.values(value))

    def restore() -> None:
        if not (same_objects(kind.keys(value), keys) and same_objects(kind.values(value), entries)):
            kind.clear(value)
            for key, entry in zip(keys, entries, strict=True):
                kind.__setitem__(value, key, entry)

    return restore


def _same(value: Any, then: Any) -> bool:
    """Whether a container still has the same objects in it."""
    if isinstance(value, set | bytearray):
        return bool(value == then)
    return same_objects(value, then)


def _arrays() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    return () if numpy is None else (numpy.ndarray,)


def is_array(value: Any) -> bool:
    """Whether it is an array of numpy, also one in a file that is mapped into memory."""
    return isinstance(value, _arrays())


def content_of_array(value: Any) -> Callable[[], None]:
    """Copy an array; the function that is returned restores what is in it, where it was changed."""
    then = value.copy()

    def restore() -> None:
        if value.flags.writeable and value.tobytes() != then.tobytes():
            value[...] = then

    return restore


def same_objects(now: Collection[Any], then: Collection[Any]) -> bool:
    """Whether two collections have the same objects in the same order. Without a Python call for each: programs keep
    millions."""
    return len(now) == len(then) and all(map(operator.is_, now, then))


def _cut(value: Any) -> Callable[[], None]:
    """What can be done for a container that is too long to copy: if it grew, its newest entries are removed."""
    length = len(value)

    def restore() -> None:
        if isinstance(value, set):
            return
        while len(value) > length:
            value.popitem() if isinstance(value, dict) else value.pop()

    return restore
