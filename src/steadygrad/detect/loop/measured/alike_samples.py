"""Whether the samples of a data set can be told apart in the batches that torch stacks from them: all rows of a batch
are the sample that was asked for last, or all inputs are one number.

The first batches of a data set are looked at, on the host, one of them where they are as they should be.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate
from torch.utils.weak import WeakIdKeyDictionary

from ...tensors.foreign_objects import getattr, hasattr, is_tensor, isinstance
from ...tensors.nested_tensors import tensors_in
from .asked_copies import ask_copy

_BATCHES, _ROWS = 4, 4
_MAX_NUMEL = 1 << 24


class AlikeSamples:
    """The data sets of one program. Each of the two sentences is empty while nothing is wrong."""

    def __init__(self) -> None:
        self.aliased = ""
        """How all rows of a batch are one sample."""
        self.constant = ""
        """How all inputs are one number."""
        self._seen: MutableMapping[Any, list[Tensor]] = WeakIdKeyDictionary()
        """By data set, by identity: a row of each of the batches so far; none where there is nothing to be seen."""

    def delivered(self, iterator: Any, indices: Sequence[Any], batch: Any) -> None:
        """A batch of these samples leaves a loader."""
        dataset = getattr(iterator, "_dataset", None)
        try:
            rows = self._seen.get(dataset)
        except TypeError:  # of a kind that cannot be referred to, such as a list
            return
        if rows is not None and not 0 < len(rows) < _BATCHES:
            return
        found = _alike(batch) if _is_stacked(iterator, dataset) and len(set(indices)) >= _ROWS else []
        self._seen[dataset] = rows = [*(rows or []), *found[:1]] if found else []
        if len(rows) == _BATCHES:
            self._judge(dataset, rows, indices, all_alike=len(found) == len(_inputs(batch)))

    def _judge(self, dataset: Any, rows: list[Tensor], indices: Sequence[Any], *, all_alike: bool) -> None:
        if not any(torch.equal(rows[0], row) for row in rows[1:]):
            if ask_copy(dataset, lambda copy: _is_written_over(copy, indices[0], indices[1])):
                self.aliased = (
                    f"all rows of each of {_BATCHES} batches are the same, and differ where the samples are asked for "
                    "one by one: the data set gives the memory of a sample away and writes the next one into it"
                )
        elif all_alike and all(row.is_floating_point() and bool((row == rows[0].flatten()[0]).all()) for row in rows):
            value = float(rows[0].flatten()[0])
            self.constant = f"all numbers of the inputs of {_BATCHES} batches are {value:.4g}, and the labels differ"


def _is_stacked(iterator: Any, dataset: Any) -> bool:
    """Whether a batch is made of single samples, by torch's own function."""
    plain = getattr(iterator, "_collate_fn", None) is default_collate and getattr(iterator, "_auto_collation", False)
    return bool(plain) and not hasattr(dataset, "__getitems__")


def _inputs(batch: Any) -> list[Tensor]:
    """What is no label: rows of several numbers."""
    found = [t for t in tensors_in(batch) if t.dim() > 1 and t.device.type == "cpu" and t.layout is torch.strided]
    return [t for t in found if t[0].numel() > 1 and t.numel() <= _MAX_NUMEL]


def _alike(batch: Any) -> list[Tensor]:
    """The first rows of inputs whose rows are all the same, where something else differs from row to row."""
    inputs = _inputs(batch)
    alike = [t[0].clone() for t in inputs if bool((t == t[:1]).all())]
    others = [t for t in tensors_in(batch) if t.dim() == 1 and t.device.type == "cpu"]
    return alike if any(bool((t != t[0]).any()) for t in others) else []


def _is_written_over(copy: Callable[[], Any], one: Any, other: Any) -> bool:
    """Whether a part of one sample becomes that of another one when that is asked for."""
    dataset = copy()
    first = list(_memory(dataset[one]))
    before = [tensor.clone() for tensor in first]
    second = list(_memory(dataset[other]))
    pairs = zip(first, before, second, strict=True)
    return any(not torch.equal(now, kept) and torch.equal(now, new) for now, kept, new in pairs)


def _memory(sample: Any) -> Iterator[Tensor]:
    """The tensors of a sample, and its arrays as tensors of the same memory."""
    numpy = sys.modules.get("numpy")
    for part in sample.values() if isinstance(sample, Mapping) else sample if isinstance(sample, tuple) else [sample]:
        if is_tensor(part):
            yield part
        elif numpy is not None and isinstance(part, numpy.ndarray):
            yield torch.from_numpy(part)
