"""The batches since the oldest snapshot, so that a rollback can run the good ones again.

Batches on the host are kept by reference (as copies once the program was seen to refill their memory); batches on a
GPU are copied to pinned host memory beside compute, so the tape takes no device memory. The tape has a size limit (see
`kept_bytes`): past it the oldest batches go, and a rollback across the gap says that it could not re-run them.
"""

from __future__ import annotations

import copy
import itertools
import operator
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...detect.tensors.foreign_objects import TENSORS, hasattr, is_tensor, isinstance
from ...detect.tensors.kept_content import KeptContent
from ...detect.tensors.nested_tensors import tensors_in
from ...detect.tensors.readable_tensors import has_plain_memory
from .kept_bytes import HOST, Piece, allowed_bytes, piece_of, pieces_of
from .moving_tensors import bytes_of
from .pinned_memory import PinnedPool
from .rng import RngState

_version = operator.attrgetter("_version")
_SEQUENCES = (list, tuple)
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
    content: KeptContent
    """Those of its tensors that are kept by reference."""
    device: torch.device | None = None
    chunks: Sequence[Tensor] = ()
    """The pinned memory its copies lie in, to be given back when it is forgotten."""
    rng: RngState | None = None
    """The random states its forward began with."""

    def fetch(self) -> Any:
        """The batch as it was, on its device."""
        if not self.chunks:
            return self.batch
        own = set(map(id, self.content.tensors))
        return _map_tensors(self.batch, lambda t: t if id(t) in own else t.to(self.device, non_blocking=True))

    def changed(self) -> bool:
        """Whether it cannot be re-run: only its loop could, or someone wrote into the kept tensors since."""
        return self.batch is NOT_AGAIN or self.content.written


class FetchedBatches(Sequence[Any]):
    """Micro-batches that come back to their device when they are asked for, so that all of them are never there at
    once."""

    def __init__(self, buffered: Sequence[BufferedBatch]) -> None:
        self._buffered = buffered

    def __len__(self) -> int:
        return len(self._buffered)

    def __getitem__(self, place: Any) -> Any:
        found = self._buffered[place]
        return FetchedBatches(found) if isinstance(found, Sequence) else found.fetch()


_ALWAYS = 8 << 20
"""Bytes that may be kept however little is left."""


def most_bytes() -> int:
    """What is kept of batches at the most: twice as much as anyone else keeps, for a rollback needs all since its
    snapshot."""
    return 2 * allowed_bytes(HOST)


class BatchBuffer:
    """A bounded queue of taped batches."""

    def __init__(self) -> None:
        self.bytes = 0
        """What they keep alive in host memory."""
        self._tables: dict[int, weakref.ref[Tensor]] = {}
        self._batches: deque[BufferedBatch] = deque()
        self.lost_before = 0
        self.losses: dict[int, float] = {}
        """The loss that each applied step had when it was made, as long as its batches are kept."""
        self._pinned = PinnedPool(most_bytes)

    def put(
        self, step: int, batch: Any, key: str, rng: RngState | None = None, content: KeptContent | None = None
    ) -> None:
        """Keep a batch. `content` are the tensors in it, if they are known. On a GPU it starts an asynchronous copy;
        never syncs."""
        content = KeptContent(tensors_in(batch)) if content is None else content
        tensors = content.tensors
        device = next((t.device for t in tensors if t.is_cuda), None)
        kept, chunks = batch, list[Tensor]()
        if device is not None:
            if sum(t.numel() * t.element_size() for t in tensors) <= most_bytes():
                kept = _map_tensors(batch, lambda tensor: self._to_pinned(tensor, chunks))
            else:
                kept, tensors = NOT_AGAIN, []  # to copy it to the host would take too much there
            content = KeptContent([t for t in tensors if not t.is_cuda])
        size = self._size(batch if kept is not NOT_AGAIN else None, tensors)
        if chunks:
            size += sum(chunk.numel() for chunk in chunks)
        buffered = BufferedBatch(step, key, kept, size, content, device, chunks, rng)
        self._batches.append(buffered)
        self.bytes += size
        while self._batches and self.bytes > _ALWAYS and self.bytes > most_bytes():
            self._pop()

    def _size(self, batch: Any, tensors: Sequence[Tensor]) -> int:
        """The host memory that a batch keeps alive. A larger tensor that the batch before was cut out of, too, is the
        program's own and is there anyway: of that only the part counts that the batch is."""
        plain = type(batch) in (tuple, list, dict) and len(batch) == len(tensors)  # and nothing else is in it
        size = 0
        for tensor in tensors if plain else ():
            if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor._base is not None:
                plain = False
                break
            storage = tensor.untyped_storage()
            if tensor.is_cpu and storage.is_shared():
                plain = False
                break
            size += storage.nbytes() if tensor.is_cpu else 0
        if plain:
            return size
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
            self.bytes = sum(buffered.size for buffered in self._batches)

    def copy_of(self, key: str, live: Any = NOT_AGAIN) -> Any:
        """The newest batch called so as it was when it was fed, or NOT_AGAIN if that is lost; `live` itself where that
        has the same content. Compares in host memory: waits for the device, and takes none of its memory."""
        found = next((buffered for buffered in reversed(self._batches) if buffered.key == key), None)
        if found is None or found.changed():
            return NOT_AGAIN
        mine, theirs = tensors_in(found.batch), tensors_in(live)
        if len(mine) == len(theirs) and all(map(_same_bits, mine, theirs)):
            return live
        return found.fetch()

    def __len__(self) -> int:
        return len(self._batches)

    def unchanged(self) -> list[BufferedBatch]:
        """All batches that can be run again, oldest first."""
        return [buffered for buffered in self._batches if not buffered.changed()]

    def newest(self, count: int) -> list[BufferedBatch]:
        """The last so many batches, oldest first."""
        return list(itertools.islice(self._batches, max(0, len(self._batches) - count), None))

    def forget_from(self, step: int) -> None:
        """Drop the batches of this step and later ones; a re-run will tape them again."""
        while self._batches and self._batches[-1].step >= step:
            buffered = self._batches.pop()
            self.bytes -= buffered.size
            self.losses.pop(buffered.step, None)
            self._pinned.give_back(buffered.chunks)

    def _pop(self) -> None:
        buffered = self._batches.popleft()
        self.bytes -= buffered.size
        self.lost_before = buffered.step + 1
        self.losses.pop(buffered.step, None)
        self._pinned.give_back(buffered.chunks)

    def _to_pinned(self, tensor: Tensor, chunks: list[Tensor]) -> Tensor:
        """An asynchronous copy in pinned memory, laid out as the tensor is."""
        if tensor.device.type != "cuda":
            return tensor
        chunk, target = self._pinned.like(tensor)
        chunks.append(chunk)
        return target.copy_(tensor.detach(), non_blocking=True)


def _same_bits(kept: Tensor, live: Tensor) -> bool:
    if not (has_plain_memory(kept) and has_plain_memory(live)):
        return False
    here = live.detach().to("cpu")
    return here.shape == kept.shape and here.dtype == kept.dtype and torch.equal(bytes_of(here), bytes_of(kept))


def by_step(buffered: list[BufferedBatch]) -> list[list[BufferedBatch]]:
    """Micro-batches that made one update together."""
    return [list(group) for _, group in itertools.groupby(buffered, key=lambda batch: batch.step)]


def pristine(value: Any, *, clone: bool = False, but_cuda: bool = False) -> Any:
    """The batch in its own containers, so that `batch.pop("labels")` in a loss_fn does not take it from a re-run.

    Tensors are the same ones, or with `clone` copies, or with `but_cuda` copies of those that are not on a GPU. What is
    no mapping, sequence or tensor, or does not let itself be copied, is passed on as it is.
    """
    if type(value) in TENSORS or (type(value) not in _SEQUENCES and is_tensor(value)):
        copies = clone or (but_cuda and value.device.type != "cuda")
        return value.detach().clone().requires_grad_(value.requires_grad) if copies else value
    if type(value) is dict:
        return {key: pristine(item, clone=clone, but_cuda=but_cuda) for key, item in value.items()}
    if type(value) in _SEQUENCES:
        if _PLAIN.issuperset(map(type, value)):  # numbers and words, maybe thousands of them
            return value[:]
        return type(value)(pristine(item, clone=clone, but_cuda=but_cuda) for item in value)
    try:
        return _pristine_of_a_class(value, lambda item: pristine(item, clone=clone, but_cuda=but_cuda))
    except Exception:
        return value


def _pristine_of_a_class(value: Any, own_copy: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        own = copy.copy(value)
        for key, item in value.items():
            own[key] = own_copy(item)
        return own
    if hasattr(value, "items") and hasattr(value, "data") and isinstance(value.data, dict):  # HF BatchEncoding
        encoding: Any = copy.copy(value)
        encoding.data = {key: own_copy(item) for key, item in value.data.items()}
        return encoding
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(own_copy, value))
    return value


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
