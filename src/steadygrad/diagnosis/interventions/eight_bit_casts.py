"""One cast to an 8-bit float changed where it stands: saturated, scaled by the tensor's own maximum, or left out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...detect.tensors.foreign_objects import isinstance
from .call_arguments import on_argument

Arguments = tuple[Any, ...]
_SMALLEST_MAXIMUM = 1e-30


def is_eight_bit_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1


def saturated(func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """What is out of range becomes the largest number of the format."""
    kind, place = _target(args, kwargs)
    if kind is None:
        return func(*args, **kwargs)
    top = torch.finfo(kind).max
    return on_argument(place, lambda tensor: tensor.clamp(-top, top))(func, args, kwargs)


def own_scale(func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Rounded with a scale taken from the tensor itself, and scaled back: the result keeps the wider type."""
    kind, _ = _target(args, kwargs)
    if kind is None or not _casts(args):
        return func(*args, **kwargs)
    wide: Tensor = args[0]
    scale = torch.finfo(kind).max / wide.detach().abs().amax().double().clamp_min(_SMALLEST_MAXIMUM)
    return ((wide * scale).to(kind).to(torch.float64) / scale).to(wide.dtype)


def left_out(func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """No cast: the result keeps the wider type."""
    kind, _ = _target(args, kwargs)
    return func(*args, **kwargs) if kind is None or not _casts(args) else args[0].clone()


def _casts(args: Arguments) -> bool:
    """Whether the tensor that comes first is the one that is cast, and not the one that is written to."""
    return bool(args) and isinstance(args[0], Tensor) and not is_eight_bit_float(args[0].dtype)


def _target(args: Arguments, kwargs: dict[str, Any]) -> tuple[torch.dtype | None, int]:
    """The 8-bit type that a call casts to, and the place of the tensor that it casts; no type where it is no cast."""
    given = (*args, *kwargs.values())
    kinds = [each for each in given if isinstance(each, torch.dtype) and is_eight_bit_float(each)]
    if kinds:
        return kinds[0], 0
    tensors = [place for place, each in enumerate(args) if isinstance(each, Tensor)]
    if len(tensors) == 2 and is_eight_bit_float(args[tensors[0]].dtype):  # copy_, or `to` a tensor's type
        return args[tensors[0]].dtype, tensors[1]
    return None, 0
