"""The tensors in nested batches, arguments and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in a batch made of tensors, mappings and sequences."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict) or callable(getattr(value, "values", None)):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    found: list[Tensor] = []
    for item in value:
        if isinstance(item, Tensor):
            found.append(item)
        else:
            found += tensors_in(item)
    return found


def first_tensor_in(value: Any) -> Tensor | None:
    """The first of them, without looking further."""
    return next((tensor for _, tensor in named_tensors_in(value)), None)


def named_tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a batch with the key that leads to it ("" for a batch that is one tensor)."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict) or callable(getattr(value, "items", None)):
        for key, item in value.items():
            yield from named_tensors_in(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from named_tensors_in(item, f"{path}.{index}" if path else str(index))
