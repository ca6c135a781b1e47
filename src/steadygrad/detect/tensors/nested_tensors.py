"""The tensors in nested batches, arguments and outputs.

Asked on every step about whatever a program has in its variables, so the work does not grow with the program's own
data: of a long container both ends are looked at first, and where they hold no tensor it is taken to hold none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from .foreign_objects import TENSORS, getattr, is_tensor, isinstance, items_in, values_in

LONG, _ENDS = 64, 8
"""A container with more items than this is long; so many are looked at from each end of it."""
_DEEPEST = 12
"""A container may hold itself; no batch is nested deeper than this."""
_SEQUENCES = frozenset({tuple, list})
_CONTAINERS = frozenset({tuple, list, dict})
_PLAIN = frozenset({int, float, bool, str, bytes, complex, type(None)})
_NO_TENSORS = _CONTAINERS | _PLAIN


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in a batch made of tensors, mappings and sequences."""
    if type(value) in TENSORS or (type(value) not in _CONTAINERS and is_tensor(value)):
        return [value]
    found: list[Tensor] = []
    _collect(value, found, _DEEPEST)
    return found


def num_rows_in(value: Any) -> int | None:
    """How many rows the tensors of a batch have; None where they have not the same number, or there is none."""
    rows = {tensor.size(0) for tensor in tensors_in(value) if tensor.dim()}  # a nested one has no shape
    return rows.pop() if len(rows) == 1 else None


def _collect(value: Any, found: list[Tensor], deepest: int) -> None:
    if type(value) in _SEQUENCES:
        if len(value) > LONG and not _may_hold_tensors(value, deepest):
            return
    elif type(value) is dict or isinstance(value, dict) or callable(getattr(value, "values", None)):
        if (type(value) is not dict or len(value) > LONG) and not _may_hold_tensors(value, deepest):
            return
        value = value.values() if type(value) is dict else values_in(value)
    elif not isinstance(value, list | tuple) or not _may_hold_tensors(value, deepest):
        return
    for item in value:
        if type(item) in TENSORS or (type(item) not in _NO_TENSORS and is_tensor(item)):
            found.append(item)
        elif deepest and type(item) not in _PLAIN:
            _collect(item, found, deepest - 1)


def first_tensor_in(value: Any) -> Tensor | None:
    """The first of them, without looking further."""
    if type(value) in _SEQUENCES:  # the usual batch, without a generator for each of its parts
        for item in value if len(value) <= LONG else ():
            if is_tensor(item):
                return item
            if type(item) not in _PLAIN:
                break
    return next((tensor for _, tensor in named_tensors_in(value)), None)


def named_tensors_in(value: Any, path: str = "", *, _deepest: int = _DEEPEST) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a batch with the key that leads to it ("" for a batch that is one tensor)."""
    if is_tensor(value):
        yield path, value
        return
    if isinstance(value, dict) or callable(getattr(value, "items", None)):
        named: Iterable[tuple[Any, Any]] = items_in(value) if _may_hold_tensors(value, _deepest) else ()
    elif isinstance(value, list | tuple):
        named = enumerate(value) if _may_hold_tensors(value, _deepest) else ()
    else:
        return
    for key, item in named:
        if type(item) not in _PLAIN and _deepest:
            yield from named_tensors_in(item, f"{path}.{key}" if path else str(key), _deepest=_deepest - 1)


def _may_hold_tensors(container: Mapping[Any, Any] | Sequence[Any], deepest: int) -> bool:
    """False for a long container at whose ends there is no tensor: a list of numbers, a table, a log."""
    try:
        if len(container) <= LONG:
            return True
    except Exception:  # it does not tell its length, so it is a class of the program's own and no data set
        return True
    if isinstance(container, list | tuple):
        ends: list[Any] = [*container[:_ENDS], *container[-_ENDS:]]
    else:
        ends = values_in(container, 2 * _ENDS)
    found: list[Tensor] = []
    for item in ends:
        if is_tensor(item):
            return True
        if deepest and type(item) not in _PLAIN:
            _collect(item, found, deepest - 1)
            if found:
                return True
    return False
