"""The batches since the oldest snapshot, so that a rollback can run the good ones again.

Batches on the host are kept by reference; batches on a GPU are copied to pinned host memory beside compute, so the
tape takes no device memory. The tape has a size limit (see `kept_bytes`): past it the oldest batches go, and a rollback
across the gap says that it could not re-run them.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...detect.tensors.nested_tensors import tensors_in
from .kept_bytes import HOST, Piece, allowed_bytes, piece_of, pieces_of
from .pinned_memory import PinnedPool
from .rng import RngState

_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})
NOT_AGAIN = object()
"""Stands for a micro-batch of someone else's loop that only that loop could run."""


@dataclass(slots=True)
class BufferedBatch:
    """One micro-batch, kept for a re-run."""

    step: int
    key: str
    batch: Any
    size: int
    versions: tuple[int, ...]
    offloaded: bool
    device: torch.device | None = None
    chunks: Sequence[Tensor] = ()
    """The pinned memory its copies lie in, to be given back when it is forgotten."""
    rng: RngState | None = None
    """The random states its forward began with."""

    def fetch(self) -> Any:
        """The batch as it was, on its device."""
        if not self.offloaded:
            return self.batch
        device = self.device
        return _map_tensors(self.batch, lambda t: t.to(device, non_blocking=True) if t.is_pinned() else t)

    def changed(self) -> bool:
        """Whether it cannot be re-run: only its loop could, or someone wrote into the kept tensors since."""
        if self.batch is NOT_AGAIN:
            return True
        return not self.offloaded and self.versions != tuple(t._version for t in tensors_in(self.batch))


_ALWAYS = 8 << 20
"""Bytes that may be kept however little is left."""


def most_bytes() -> int:
    """What is kept of batches at the most: twice as much as anyone else keeps, for a rollback needs all since its
    snapshot."""
    return 2 * allowed_bytes(HOST)


class BatchBuffer:
    """A bounded queue of taped batches."""

    def __init__(self) -> None:
        self._bytes = 0
        self._tables: dict[int, weakref.ref[Tensor]] = {}
        self._batches: deque[BufferedBatch] = deque()
        self.lost_before = 0
        self._pinned = PinnedPool(most_bytes)

    def put(
        self, step: int, batch: Any, key: str, rng: RngState | None = None, tensors: list[Tensor] | None = None
    ) -> None:
        """Keep a batch. `tensors` are those in it, if they are known. On a GPU it starts an asynchronous copy; never
        syncs."""
        tensors = tensors_in(batch) if tensors is None else tensors
        device = next((t.device for t in tensors if t.device.type == "cuda"), None)
        kept, chunks = batch, list[Tensor]()
        if device is not None:
            if sum(t.numel() * t.element_size() for t in tensors) <= most_bytes():
                kept = _map_tensors(batch, lambda tensor: self._to_pinned(tensor, chunks))
            else:
                kept, tensors = NOT_AGAIN, []  # to copy it to the host would take too much there
        versions = tuple(t._version for t in tensors)
        size = sum(chunk.numel() for chunk in chunks) + self._size(batch if kept is not NOT_AGAIN else None, tensors)
        buffered = BufferedBatch(step, key, kept, size, versions, device is not None, device, chunks, rng)
        self._batches.append(buffered)
        self._bytes += size
        while self._batches and self._bytes > _ALWAYS and self._bytes > most_bytes():
            self._pop()

    def _size(self, batch: Any, tensors: Sequence[Tensor]) -> int:
        """The host memory that a batch keeps alive. A larger tensor that the batch before was cut out of, too, is the
        program's own and is there anyway: of that only the part counts that the batch is."""
        plain = type(batch) in (tuple, list, dict) and len(batch) == len(tensors)  # and nothing else is in it
        if plain and all(type(t) is Tensor and t.layout is torch.strided and t._base is None for t in tensors):
            return sum(t.untyped_storage().nbytes() for t in tensors if t.device.type == "cpu")
        pieces, own = pieces_of(batch), dict[Piece, int]()
        before, self._tables = self._tables, {}
        for tensor in tensors:
            table = tensor._base
            if table is None:
                continue
            self._tables[id(table)] = weakref.ref(table)
            known = before.get(id(table))
            if known is not None and known() is table:
                piece, _ = piece_of(tensor)
                own[piece] = own.get(piece, 0) + tensor.numel() * tensor.element_size()
        return sum(size for (place, _), size in {**pieces, **own}.items() if place == HOST)

    def trim(self, before: int) -> None:
        """Forget batches of steps before this one: no snapshot can use them any more."""
        while self._batches and self._batches[0].step < before:
            self._pop()

    def since(self, step: int) -> list[BufferedBatch] | None:
        """All batches from this step on, or None if some of them are lost or were changed."""
        wanted = [buffered for buffered in self._batches if buffered.step >= step]
        if step < self.lost_before or any(buffered.changed() for buffered in wanted):
            return None
        return wanted

    def drop(self, keys: set[str]) -> None:
        """Forget the batches called so, wherever they are: they are never to be run again."""
        if any(buffered.key in keys for buffered in self._batches):
            for buffered in self._batches:
                if buffered.key in keys:
                    self._pinned.give_back(buffered.chunks)
            self._batches = deque(buffered for buffered in self._batches if buffered.key not in keys)
            self._bytes = sum(buffered.size for buffered in self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def newest(self, count: int) -> list[BufferedBatch]:
        """The last so many batches, oldest first."""
        return list(itertools.islice(self._batches, max(0, len(self._batches) - count), None))

    def forget_from(self, step: int) -> None:
        """Drop the batches of this step and later ones; a re-run will tape them again."""
        while self._batches and self._batches[-1].step >= step:
            buffered = self._batches.pop()
            self._bytes -= buffered.size
            self._pinned.give_back(buffered.chunks)

    def _pop(self) -> None:
        buffered = self._batches.popleft()
        self._bytes -= buffered.size
        self.lost_before = buffered.step + 1
        self._pinned.give_back(buffered.chunks)

    def _to_pinned(self, tensor: Tensor, chunks: list[Tensor]) -> Tensor:
        """An asynchronous copy in pinned memory, laid out as the tensor is."""
        if tensor.device.type != "cuda":
            return tensor
        chunk, target = self._pinned.like(tensor)
        chunks.append(chunk)
        return target.copy_(tensor.detach(), non_blocking=True)


def by_step(buffered: list[BufferedBatch]) -> list[list[BufferedBatch]]:
    """Micro-batches that made one update together."""
    return [list(group) for _, group in itertools.groupby(buffered, key=lambda batch: batch.step)]


def pristine(value: Any, *, clone: bool = False) -> Any:
    """The batch in its own containers, so that `batch.pop("labels")` in a loss_fn does not take it from a re-run.

    Tensors are the same ones, or with `clone` copies. What is no mapping, sequence or tensor is passed on as it is.
    """
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad) if clone else value
    if type(value) is dict:
        return {key: pristine(item, clone=clone) for key, item in value.items()}
    if isinstance(value, dict):
        own = copy.copy(value)
        for key, item in value.items():
            own[key] = pristine(item, clone=clone)
        return own
    if hasattr(value, "items") and hasattr(value, "data") and isinstance(value.data, dict):  # HF BatchEncoding
        encoding: Any = copy.copy(value)
        encoding.data = {key: pristine(item, clone=clone) for key, item in value.data.items()}
        return encoding
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(pristine(item, clone=clone) for item in value))
    if type(value) in (list, tuple):
        if _PLAIN.issuperset(map(type, value)):  # numbers and words, maybe thousands of them
            return value[:]
        return type(value)(pristine(item, clone=clone) for item in value)
    return value


def versions_of(batch: Any) -> tuple[int, ...]:
    """How often each tensor of a batch has been written into."""
    return tuple(tensor._version for tensor in tensors_in(batch))


def _map_tensors(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, change) for key, item in value.items()}
    if hasattr(value, "items") and hasattr(value, "data") and isinstance(value.data, dict):  # HF BatchEncoding
        return type(value)({key: _map_tensors(item, change) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_tensors(item, change) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_map_tensors(item, change) for item in value)
    return value
