"""Batches that cannot be cut by rows: other entries point at the rows by their number.

A graph is nodes and a list of edges that names them, or a matrix with a row and a column for each node; a packed batch
is tokens and where each sequence begins. Without some of the rows the numbers point elsewhere, or past the end. Such a
batch is taken as a whole.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.readable_tensors import describable
from ..replay.batch_tree import walk_batch
from ..trace.trace_log import OpRecord, Touch, Trace

# Operations that take places along a dimension: which of their inputs holds them, by the order of their tensors.
_ALONG_ALL = frozenset({"index", "unsafe_index", "index_put", "index_put_impl", "unsafe_index_put", "embedding"})
_ALONG_ONE = frozenset(
    {"index_select", "index_add", "index_copy", "index_fill", "index_reduce", "gather", "scatter", "scatter_add",
     "scatter_reduce"}
)  # fmt: skip
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "mv"})
_BY_ORDER = frozenset({"sort", "topk"})
"""What gives the places of an entry's numbers in their order: with fewer rows it gives other places."""
_MAX_STEPS = 64


def indivisible(trace: Trace, batch: Any, size: int) -> str:
    """Why this batch cannot be cut by rows, as a clause; "" if nothing says so. `size` is its number of rows."""
    if size < 2:
        return ""
    key = _boundaries(batch, size)
    if key is not None:
        return f"the batch is indivisible: {key!r} says where sequences begin in its {size} rows"
    square = {k for k, v in walk_batch(batch) if isinstance(v, torch.Tensor) and v.shape[-2:] == (size, size)}
    for record in trace.records:
        key = _points_at_rows(trace, record, size)
        if key is not None:
            return f"the batch is indivisible: {key!r} points at its {size} rows by their number"
        key = _adds_up_rows(trace, record, square, size) if square else None
        if key is not None:
            return f"the batch is indivisible: {key!r} says how its {size} rows are connected"
    return ""


def _adds_up_rows(trace: Trace, record: OpRecord, square: set[str], size: int) -> str | None:
    """The square batch entry by which this product adds up rows of the batch, such as a matrix of neighbours."""
    if record.backward or record.op not in _PRODUCTS or len(record.reads) < 2:
        return None
    matrix, rows = record.reads[-2:]
    long = rows.shape[-2:-1] == (size,) or rows.shape == (size,)
    if matrix.shape[-2:] != (size, size) or not long or _entry_behind(trace, rows, integers=False) is None:
        return None
    key = _entry_behind(trace, matrix, integers=False)
    return key if key in square else None


def _boundaries(batch: Any, size: int) -> str | None:
    """An entry of a packed batch: rising numbers from 0 to the number of rows, with at least one in between."""
    for key, value in walk_batch(batch):
        if not isinstance(value, torch.Tensor) or not describable(value) or not _holds_integers(value):
            continue
        if value.dim() != 1 or not 2 < value.numel() <= size or value.numel() == size:
            continue
        numbers = value.tolist()
        if numbers[0] == 0 and numbers[-1] == size and all(a <= b for a, b in pairwise(numbers)):
            return key
    return None


def _holds_integers(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int32, torch.int64, torch.int16)


def _points_at_rows(trace: Trace, record: OpRecord, size: int) -> str | None:
    """The batch entry whose numbers this operation uses as places along the rows; None where it does not."""
    if record.backward or len(record.reads) < 2:
        return None
    rows = record.reads[0]
    if not rows.shape or rows.shape[0] != size:
        return None
    if record.op in _ALONG_ONE and (not record.scalars or record.scalars[0] not in (0.0, -float(len(rows.shape)))):
        return None
    if record.op not in _ALONG_ONE and record.op not in _ALONG_ALL:
        return None
    places = next((touch for touch in record.reads[1:] if touch.dtype.startswith("int")), None)
    if places is None or _entry_behind(trace, rows, integers=False) is None:
        return None
    return _entry_behind(trace, places, integers=True)


def _entry_behind(trace: Trace, touch: Touch, *, integers: bool) -> str | None:
    """The batch entry that a tensor was made of, over operations on integers alone if so wanted."""
    pending, seen = [touch], set[int]()
    while pending and len(seen) < _MAX_STEPS:
        current = pending.pop(0)
        if integers and not current.dtype.startswith("int"):
            continue
        kind, name = trace.label(current)
        if kind == "batch":
            return name
        log = trace.writers.get(current.storage, [])[: current.writes_before]
        if log and log[-1][0] not in seen:
            seen.add(log[-1][0])
            maker = trace.records[log[-1][0]]
            if not (integers and maker.op in _BY_ORDER and maker.writes[-1].storage == current.storage):
                pending += maker.reads
    return None
