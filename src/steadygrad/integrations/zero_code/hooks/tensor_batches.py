"""Which rows of a larger tensor a batch is made of, for loops that cut their batches out of one themselves.

`x[i:i + 16]` and `x.split(16)` are views: their place in the larger tensor says which rows they are. `x[order[i]]` is a
copy: its rows are looked up by their values in the tensors that the loop's functions hold. A larger tensor that was not
there in an earlier round is a batch itself, and its rows say nothing.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ....detect.tensors.nested_tensors import tensors_in
from ....detect.tensors.readable_tensors import describable
from ..rerun.user_state import is_users

_MAX_DEPTH = 60
_MAX_FRAMES = 4
_MAX_ELEMENTS = 1 << 24
_MAX_TENSORS = 4
_KEPT = 8


class SourceTensors:
    """The larger tensors that the model's arguments were cut out of, in this round and in earlier ones."""

    def __init__(self) -> None:
        self._now: list[weakref.ref[Tensor]] = []
        self._earlier: list[weakref.ref[Tensor]] = []
        self.ended: Sequence[FrameType] = ()
        """Functions that an error has ended, for the time in which it is explained."""

    def called(self, arguments: Any) -> None:
        """A model is called. Host work only."""
        for number, tensor in enumerate(tensors_in(arguments)):
            base = tensor._base if number < _MAX_TENSORS else None
            if base is not None and len(self._now) < _KEPT:
                self._now.append(weakref.ref(base))

    def next_round(self) -> None:
        """An update was judged."""
        if self._now:
            self._earlier, self._now = self._now, []

    def rows_of(self, tensors: Sequence[Tensor]) -> tuple[int, ...] | None:
        """The rows that the batch is made of; None where that cannot be known. May read the device."""
        plain = [tensor for tensor in tensors if describable(tensor) and tensor.dim() and tensor.shape[0] > 0]
        known = {id(base) for reference in self._earlier if (base := reference()) is not None}
        held = list(_held(self.ended))
        for tensor in plain[:_MAX_TENSORS]:
            base = tensor._base
            if base is not None and id(base) not in known:
                continue
            if base is not None:
                tables = [base, *(table for table in held if table._base is base)]
                rows = next((rows for table in tables if (rows := rows_of_view(tensor, table)) is not None), None)
            else:
                rows = next((rows for table in held if (rows := _looked_up(tensor, table)) is not None), None)
            if rows is not None:
                return rows
        return None


def rows_of_view(tensor: Tensor, base: Tensor | None) -> tuple[int, ...] | None:
    """Which rows of `base` a view of it consists of, in order; None where it does not consist of whole rows."""
    if base is None or base.dim() == 0 or base.shape[1:] != tensor.shape[1:] or tensor.shape[0] >= base.shape[0]:
        return None
    stride = base.stride(0)
    offset = tensor.storage_offset() - base.storage_offset()
    if not stride or tensor.stride(0) % stride or offset % stride or tensor.stride()[1:] != base.stride()[1:]:
        return None
    step = tensor.stride(0) // stride if tensor.shape[0] > 1 else 1
    return tuple(range(offset // stride, offset // stride + step * tensor.shape[0], step)) if step else None


def _looked_up(batch: Tensor, table: Tensor) -> tuple[int, ...] | None:
    """The row of the table that each row of the batch is a copy of; None unless each is found exactly once."""
    alike = table.shape[1:] == batch.shape[1:] and table.dtype is batch.dtype and table.device == batch.device
    size = table.shape[0] * batch.shape[0]
    if not alike or table.shape[0] <= batch.shape[0] or size > _MAX_ELEMENTS or batch[0].numel() < 2:
        return None
    rows, wanted = _bits(table), _bits(batch)
    found: list[int] = []
    for row in wanted:
        places = (rows[:, 0] == row[0]).nonzero().flatten()  # few are left to be compared whole
        places = places[(rows[places] == row).all(dim=1)]
        if places.numel() != 1:
            return None
        found.append(int(places))
    return tuple(found)


def _bits(tensor: Tensor) -> Tensor:
    """As rows of whole numbers, so that a NaN equals itself."""
    flat = tensor.detach().reshape(tensor.shape[0], -1)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(flat.element_size())
    return flat.view(whole) if flat.is_floating_point() and whole is not None else flat


def _held(ended: Sequence[FrameType]) -> Iterator[Tensor]:
    """Larger tensors among the variables of the program's functions that are running, innermost first."""
    seen: set[int] = set()
    for frame in [*ended, *_running()][:_MAX_FRAMES]:
        own = frame.f_locals.get("self")
        attributes = vars(own) if isinstance(getattr(own, "__dict__", None), dict) else {}
        for value in [*frame.f_locals.values(), *attributes.values(), *frame.f_globals.values()]:
            plain = type(value) is Tensor and id(value) not in seen and describable(value) and value.dim() > 0
            if plain and 0 < value.numel() <= _MAX_ELEMENTS:
                seen.add(id(value))
                yield value


def _running() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_DEPTH):
        if frame is None:
            return
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back
