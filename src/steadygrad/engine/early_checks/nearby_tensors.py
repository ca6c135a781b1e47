"""Masks, lengths and labels of a model's call that were not given to it: the program has them in its variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ...detect.loop.program_frames import frames_of_program, variables_of
from ...detect.tensors.foreign_objects import is_tensor, isinstance
from ...detect.tensors.readable_tensors import why_not_read

_ENTRIES, _MAX_NUMEL = 64, 1 << 20


def nearby_tensors(rows: int) -> dict[str, Tensor]:
    """Tables of (rows, positions), and a whole number for each row, in variables of the running functions, by name.
    Nothing is read or copied."""
    found: dict[str, Tensor] = {}
    for frame in frames_of_program():
        for name, value in list(variables_of(frame).items())[:_ENTRIES]:
            for key, tensor in _tensors(name, value):
                if _is_table(tensor, rows):
                    found.setdefault(key, tensor)
    return found


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The variable itself, or the entries of a batch."""
    if is_tensor(value):
        yield name, value
    elif isinstance(value, Mapping) and len(value) <= _ENTRIES:
        yield from ((str(key), each) for key, each in value.items() if is_tensor(each))
    elif isinstance(value, list | tuple) and len(value) <= _ENTRIES:
        yield from ((f"{name}[{place}]", each) for place, each in enumerate(value) if is_tensor(each))


def _is_table(tensor: Tensor, rows: int) -> bool:
    if why_not_read(tensor) is not None or tensor.device.type != "cpu" or tensor.requires_grad:
        return False
    shape = tensor.shape
    lengths = tensor.dim() == 1 and not tensor.is_floating_point() and tensor.dtype is not torch.bool
    table = tensor.dim() == 2 and shape[1] > 1
    return (table or lengths) and shape[0] == rows and tensor.numel() <= _MAX_NUMEL
