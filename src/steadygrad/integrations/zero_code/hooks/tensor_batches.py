"""Which rows of a larger tensor a batch is made of, for loops that cut their batches out of one themselves.

`x[i:i + 16]` and `x.split(16)` are views: their place in the larger tensor says which rows they are. `x[order[i]]` is a
copy: its rows are looked up by their values in the tensors that the loop's functions hold. A larger tensor that was not
there in an earlier round is a batch itself, and its rows say nothing.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor

from ....detect.loop.program_frames import variables_of
from ....detect.tensors.foreign_objects import getattr, isinstance
from ....detect.tensors.nested_tensors import tensors_in
from ....detect.tensors.readable_tensors import describable
from ....engine.recovery.reruns.user_state import is_users

_MAX_DEPTH = 60
_MAX_FRAMES = 4
_MAX_ELEMENTS = 1 << 24
_MAX_TENSORS = 4
_KEPT = 8
_FIRST_ROUNDS = 3
_MAX_PARTS = 32


class SourceTensors:
    """The larger tensors that the model's arguments were cut out of, in this round and in earlier ones."""

    def __init__(self) -> None:
        self._now: list[weakref.ref[Tensor]] = []
        self._earlier: list[weakref.ref[Tensor]] = []
        self._first: dict[int, weakref.ref[Tensor]] = {}
        self._rounds = 0
        self.ended: Sequence[FrameType] = ()
        """Functions that an error has ended, for the time in which it is explained."""

    def called(self, arguments: Any) -> None:
        """A model is called. Host work only."""
        for number, tensor in enumerate(tensors_in(arguments)):
            base = tensor._base if number < _MAX_TENSORS else None
            if base is not None and len(self._now) < _KEPT:
                self._now.append(weakref.ref(base))

    def next_round(self) -> None:
        """An update was judged. What the loop's functions hold in the first rounds is noted: a batch does not last."""
        if self._rounds < _FIRST_ROUNDS:
            self._rounds += 1
            held = {id(table): table for table in _held(())}
            # What was there in the first round and is not there in the next was a batch.
            alive = {key: kept for key, kept in self._first.items() if kept() is not None and key in held}
            self._first = alive if self._rounds > 1 else {key: weakref.ref(each) for key, each in held.items()}
        if self._now:
            self._earlier, self._now = self._now, []

    def rows_of(self, tensors: Sequence[Tensor]) -> tuple[int, ...] | None:
        """The rows that the batch is made of; None where that cannot be known. May read the device."""
        plain = [tensor for tensor in tensors if describable(tensor) and tensor.dim() and tensor.shape[0] > 0]
        lasting = self._first.values() if self._rounds > 1 else ()
        known = {id(base) for reference in (*self._earlier, *lasting) if (base := reference()) is not None}
        held = list(_held(self.ended))
        for tensor in plain[:_MAX_TENSORS]:
            base = tensor._base
            if base is not None and id(base) not in known:
                continue
            if base is not None:
                tables = [base, *(table for table in held if table._base is base)]
                rows = next((rows for table in tables if (rows := rows_of_view(tensor, table)) is not None), None)
                rows = _drawn_in(base, rows) if rows is not None else None
            else:
                rows = next((rows for table in held if (rows := _looked_up(tensor, table)) is not None), None)
            if rows is not None:
                return rows
        return None


def _drawn_in(base: Tensor, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Of an order in which samples are drawn the samples at these places; of any other tensor the rows themselves."""
    if base.dim() != 1 or base.dtype not in (torch.int32, torch.int64) or base.numel() > _MAX_ELEMENTS:
        return rows
    drawn = base.detach().sort().values
    is_order = bool((drawn == torch.arange(len(drawn), device=drawn.device)).all())
    return tuple(base.detach()[list(rows)].tolist()) if is_order else rows


def rows_of_view(tensor: Tensor, base: Tensor | None) -> tuple[int, ...] | None:
    """Which rows of `base` a view of it is cut out of, in order: whole rows, or the same part of each. None where it is
    no such view, or all of it."""
    if base is None or not base.dim() or not tensor.dim() or not 0 < tensor.shape[0] < base.shape[0]:
        return None
    stride, along = base.stride(0), tensor.stride(0)
    offset = tensor.storage_offset() - base.storage_offset()
    if stride < 1 or (tensor.shape[0] > 1 and (along < stride or along % stride)) or offset < 0:
        return None
    width = 1 + sum((size - 1) * abs(step) for size, step in zip(tensor.shape[1:], tensor.stride()[1:], strict=True))
    if offset % stride + width > stride:
        return None  # it reaches over several rows
    step = along // stride if tensor.shape[0] > 1 else 1
    rows = tuple(range(offset // stride, offset // stride + step * tensor.shape[0], step))
    return rows if rows[-1] < base.shape[0] else None


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
        names = variables_of(frame)
        here, everywhere = list(names.values()), list(frame.f_globals.values())
        inside = [part for value in [*here, *everywhere] for part in _parts(value)]
        for value in [*here, *_attributes(names.get("self")), *everywhere, *inside]:
            plain = type(value) is Tensor and id(value) not in seen and describable(value) and value.dim() > 0
            if plain and 0 < value.numel() <= _MAX_ELEMENTS:
                seen.add(id(value))
                yield value


def _attributes(value: Any) -> Iterator[Any]:
    names = getattr(value, "__dict__", None)
    return iter(list(names.values()) if isinstance(names, dict) else ())


def _parts(value: Any) -> Iterator[Any]:
    """What a table of the program's own may lie in beside a variable: a replay memory, a dictionary of columns."""
    if isinstance(value, dict | list | tuple):
        yield from list(value.values() if isinstance(value, dict) else value)[:_MAX_PARTS]
    elif not isinstance(value, type | ModuleType | Tensor | torch.nn.Module) and _is_of_program(type(value)):
        yield from itertools.islice(_attributes(value), _MAX_PARTS)


def _is_of_program(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return is_users(getattr(module, "__file__", None) or "<frozen")


def _running() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_DEPTH):
        if frame is None:
            return
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back
