"""Records as plain data and back. JSON has no NaN: non-finite numbers travel as the strings "nan", "inf", "-inf"."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin

T = TypeVar("T")
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_plain(value: Any) -> Any:
    """Dataclasses, enums, tuples and floats as what JSON can hold, losing nothing."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool) or value is None or isinstance(value, int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else ("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [to_plain(item) for item in value]
    return str(value)


def from_plain(kind: type[T], data: Any) -> T:
    """The record of type `kind` that `to_plain` made this from. Unknown keys are ignored, so an older
    steadygrad reads what a newer one wrote as far as it knows it."""
    return typing.cast(T, _read(kind, data))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, data: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if origin in (Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        return _read(next(arg for arg in args if arg is not type(None)), data)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        names = [field.name for field in dataclasses.fields(kind)]
        return kind(**{name: _read(hints[name], data[name]) for name in names if name in data})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if kind is float:
        return _NON_FINITE[data] if isinstance(data, str) else float(data)
    if origin is tuple:
        return tuple(_read(args[0], item) for item in data)
    if origin is dict:
        return {key: _read(args[1], item) for key, item in data.items()}
    return data
