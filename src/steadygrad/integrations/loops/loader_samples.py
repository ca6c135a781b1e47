"""Which samples of its data set a batch is made of, where a framework owns the loop: a batch is called by the indices
that its DataLoader drew for it.

A loader draws ahead of what it hands out (workers, look-ahead), and a framework fetches ahead of what it trains on. So
each iterator's draws wait in a queue until their batch is handed out, and a batch that is trained on is recognised by
its tensors: the very objects that the loader gave, or those that the framework made of them when it moved them to a
device. Never by their order, and on a device never by their values, which would have to be waited for.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import dataloader

from ...detect.tensors.nested_tensors import tensors_in
from ...detect.tensors.readable_tensors import describable
from .patch_barrier import Failed
from .patching import Patches

_RING = 64
_SAMPLED = 64
_SHOWN = 64
_ROW_HEAD = 4
_MOST_TENSORS = 8
_MOVERS = (("accelerate.data_loader", "send_to_device"),)
"""Functions by which frameworks move a batch to a device: their module and their name there."""


@dataclass(slots=True)
class _Given:
    """A batch that a loader handed out, and the tensors by which it is recognised."""

    indices: tuple[Any, ...]
    tensors: list[weakref.ref[Tensor]]
    prints: frozenset[Any]

    def has(self, tensors: Sequence[Tensor]) -> bool:
        mine = [tensor for reference in self.tensors if (tensor := reference()) is not None]
        return any(tensor is each for tensor in tensors for each in mine)


class LoaderSamples:
    """Listens to all loaders of the process until `close`. Touches neither batches nor random numbers."""

    def __init__(self, failed: Failed | None = None) -> None:
        self._drawn: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()
        self._ring: deque[_Given] = deque(maxlen=_RING)
        self._copies = False
        """Whether a batch that was trained on was a copy: then the next ones are known by their values."""
        self._patches = Patches(failed)
        kind = dataloader._BaseDataLoaderIter
        self._patches.around(kind, "__init__", self._begins)
        self._patches.around(kind, "_reset", self._begins)
        self._patches.around(kind, "_next_index", self._draws)
        self._patches.around(kind, "__next__", self._gives)
        for module, name in _MOVERS:
            if module in sys.modules:
                self._patches.around(sys.modules[module], name, self._moves)

    def close(self) -> None:
        """Everything of torch as it was."""
        self._patches.undo()
        self._ring.clear()

    def name(self, batch: Any, count: int) -> str:
        """How a batch is called: by its samples, else by counting. Does not sync."""
        tensors = _some_tensors(batch)
        given = next((each for each in reversed(self._ring) if each.has(tensors)), None)
        if given is None and self._ring:
            prints = _prints(tensors)
            self._copies = self._copies or bool(prints)
            alike = [each for each in self._ring if prints & each.prints]
            given = alike[0] if len(alike) == 1 else None
        return samples_in_words(given.indices) if given is not None else str(count)

    def moved(self, before: Any, after: Any) -> None:
        """A framework made `after` of a batch: it is recognised by these tensors as well."""
        tensors = _some_tensors(before)
        given = next((each for each in reversed(self._ring) if each.has(tensors)), None)
        others = _some_tensors(after) if given is not None else []
        if given is not None and not any(map(operator.is_, tensors, others)):
            given.tensors += [weakref.ref(tensor) for tensor in others]

    # -- what the loaders do

    def _begins(self, original: Any, iterator: Any, *args: Any, **kwargs: Any) -> None:
        """An iterator begins, or begins a new epoch: what was drawn and never handed out is gone. One that was under
        way before is left alone: what it has drawn already is not known."""
        self._drawn[iterator] = deque()
        original(iterator, *args, **kwargs)

    def _draws(self, original: Any, iterator: Any) -> Any:
        index = original(iterator)
        queue = self._drawn.get(iterator)
        if queue is not None:
            queue.append(index)
        return index

    def _gives(self, original: Any, iterator: Any) -> Any:
        batch = original(iterator)
        queue = self._drawn.get(iterator)
        drawn = queue.popleft() if queue else None
        indices = tuple(drawn) if isinstance(drawn, list | tuple) else (drawn,)
        # An iterable data set draws no indices; workers may hand out in the order in which they finish.
        known = all(index is not None for index in indices) and getattr(iterator, "_in_order", True) is not False
        tensors = _some_tensors(batch) if known and indices else []
        if tensors:
            prints = _prints(tensors) if self._copies else frozenset()
            self._ring.append(_Given(indices, [weakref.ref(tensor) for tensor in tensors], prints))
        return batch

    def _moves(self, original: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        after = original(batch, *args, **kwargs)
        if issubclass(type(batch), dict | list | tuple | Tensor):  # it calls itself for the parts of a batch
            self.moved(batch, after)
        return after


def _some_tensors(batch: Any) -> list[Tensor]:
    return tensors_in(batch)[:_MOST_TENSORS]


def _prints(tensors: Sequence[Tensor]) -> frozenset[Any]:
    """What is compared of those that lie in memory of the host."""
    on_host = (tensor for tensor in tensors if tensor.device.type == "cpu" and describable(tensor))
    return frozenset(fingerprint(tensor) for tensor in on_host if tensor.layout is torch.strided and tensor.numel())


def fingerprint(tensor: Tensor) -> tuple[Any, ...]:
    """A few numbers spread over a tensor on the host, with its size and kind; the shape may have changed since."""
    array = _array(tensor)
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat  # no copy of all of it
    step = max(1, array.size // _SAMPLED)
    return tensor.dtype, array.size, flat[: step * _SAMPLED : step].tobytes()


def heads(tensor: Tensor) -> tuple[Any, ...]:
    """The first numbers of every row."""
    rows = _array(tensor)[:_SAMPLED]
    while rows.ndim > 2:
        rows = rows[:, 0]
    return tensor.dtype, tensor.shape[0], (rows[:, :_ROW_HEAD] if rows.ndim == 2 else rows).tobytes()


def samples_in_words(indices: Sequence[Any]) -> str:
    """The samples of a batch as they are listed in its name."""
    shown = ", ".join(str(index) for index in indices[:_SHOWN])
    return f"samples {shown}{', ...' if len(indices) > _SHOWN else ''}"


def _array(tensor: Tensor) -> Any:
    """The same memory as an array of numpy, whose small operations take a fraction of the time of torch's."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    try:
        return (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    except TypeError:  # a type that numpy does not have
        return tensor.contiguous().view(torch.uint8).numpy()
