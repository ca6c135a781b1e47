"""Trees of tensors and plain values as safetensors plus JSON, and back. Nothing that executes, ever.

A tensor in the tree becomes `{"$tensor": "t12"}`; tuples and non-string keys are marked so that they come back as
they were. Anything else (a function in a scheduler's state, say) is refused by name.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...detect.tensors.foreign_objects import getattr, hasattr, isinstance
from ...records.errors import UsageError
from .rng import RngState, rng_to_plain


def pack(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """The tree as JSON-able data and a flat mapping of contiguous CPU tensors."""
    tensors: dict[str, Tensor] = {}
    return _pack(tree, tensors, "state"), tensors


def unpack(data: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `pack`."""
    if isinstance(data, dict):
        if "$tensor" in data:
            return tensors[data["$tensor"]]
        if "$tuple" in data:
            return tuple(unpack(item, tensors) for item in data["$tuple"])
        if "$number" in data:
            return float(data["$number"])
        if "$pairs" in data:
            return {unpack(key, tensors): unpack(value, tensors) for key, value in data["$pairs"]}
        return {key: unpack(value, tensors) for key, value in data.items()}
    if isinstance(data, list):
        return [unpack(item, tensors) for item in data]
    return data


def _pack(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        # A clone: safetensors refuses tensors that share memory, and tied weights do.
        tensors[name] = value.detach().to("cpu").contiguous().clone()
        return {"$tensor": name}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$number": str(value)}
    if isinstance(value, tuple):
        return {"$tuple": [_pack(item, tensors, where) for item in value]}
    if isinstance(value, list):
        return [_pack(item, tensors, where) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _pack(item, tensors, f"{where}.{key}") for key, item in value.items()}
        return {"$pairs": [[_pack(k, tensors, where), _pack(v, tensors, where)] for k, v in value.items()]}
    if isinstance(value, RngState):
        return _pack(rng_to_plain(value), tensors, where)
    if isinstance(value, torch.dtype):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        return _pack(value.item(), tensors, where)
    raise UsageError(
        f"{where} holds a {type(value).__name__}, which cannot be kept in a checkpoint without executing code on load. "
        "Keep plain numbers, strings, lists and tensors in registered state."
    )
