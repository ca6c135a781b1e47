"""Which samples a batch is made of: the indices a DataLoader drew, found again by what the model was given.

A loader draws indices ahead of the batch it hands out (workers, look-ahead), so the last indices drawn are not those
of the batch in hand. Each iterator's draws wait in a queue until their batch is handed out. The batch then gets a
fingerprint, a few numbers of each tensor, by which the tensors a model received are recognised: the very objects, or
copies on another device, or views without their last columns.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from ....detect.loop.measured.delivered_data import DeliveredData
from ....detect.loop.measured.repeated_streams import ROUNDS
from ....detect.loop.measured.worker_seeds import same_draws, seeded_alike
from ....detect.tensors.foreign_objects import getattr, isinstance
from ....detect.tensors.nested_tensors import tensors_in
from ....detect.tensors.readable_tensors import describable, has_values
from ....engine.state.kept_bytes import Piece, fit, pieces_of
from ....records import Diagnosis
from ...loops.data_origin import LoaderSource
from ...loops.loader_samples import fingerprint, heads, samples_in_words
from .tensor_batches import SourceTensors, rows_of_view

_RING = 64
_KEPT = 2
_QUEUE = "_steadygrad_drawn"
_GIVEN = "_steadygrad_given"
_REPEATS = 3
ROWS = "rows"


@dataclass(slots=True)
class LoaderBatch:
    """One batch a loader handed out."""

    indices: tuple[Any, ...]
    number: int
    tensors: list[weakref.ref[Tensor]]
    source: LoaderSource
    prints: frozenset[Any] = frozenset()
    heads: frozenset[Any] = frozenset()


@dataclass(frozen=True, slots=True)
class FoundSamples:
    """The samples of a batch and how they were recognised: "same tensors", "same values", "order", or "rows" of a
    larger tensor that the program cuts its batches out of."""

    indices: tuple[Any, ...]
    how: str

    @property
    def name(self) -> str:
        """How a batch of these is called in the journal."""
        return samples_in_words(self.indices)


@dataclass(slots=True)
class LoaderBatches:
    """The last batches all loaders of the program handed out."""

    ring: deque[LoaderBatch] = field(default_factory=lambda: deque(maxlen=_RING))
    handed: int = 0
    recent: deque[Any] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """The last batches themselves, those in host memory: a loop may prepare them before it calls its model."""
    _pieces: deque[Mapping[Piece, int]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """The memory of each of them."""
    tables: SourceTensors = field(default_factory=SourceTensors)
    repeated: str = ""
    """How a loader is begun anew for every batch and gives the same samples: a sentence, or nothing."""
    same_draws: str = ""
    """How the workers of a loader draw the same numbers: a sentence, or nothing."""
    data: DeliveredData = field(default_factory=DeliveredData)
    _asked: set[int] = field(default_factory=set)
    _epoch_from: int = 0
    """The number of the first batch since a loader was begun."""
    _begun: tuple[int, tuple[Any, ...], int] = (0, (), 0)
    """The loader that was begun last, the first samples it gave, and how often in a row it gave these alone."""
    _undescribed: tuple[LoaderBatch, list[Tensor]] | None = None
    _ahead: int | None = None
    """How many batches the program fetches before it uses one, as last seen."""

    @property
    def wrong(self) -> dict[str, str]:
        """What is wrong with the batches, as sentences by their names in the record of a loop."""
        data = self.data
        return {
            "repeated": self.repeated or data.streams.found,
            "same_draws": self.same_draws,
            "few_drawn": data.few_drawn,
            "by_class": data.classes.found,
            "rewritten": data.kept.found,
            "aliased": data.samples.aliased,
            "constant": data.samples.constant,
        }

    def drawn(self, iterator: Any, index: Any) -> None:
        """A loader's iterator drew the indices of a batch it will hand out later."""
        if self.data.kept.watching:
            self.data.kept.drawing()
        queue = vars(iterator).get(_QUEUE)
        if queue is not None:
            queue.append(index)

    def restarted(self, iterator: Any) -> None:
        """An iterator begins, or begins a new epoch: what was drawn and never handed out is gone.

        One that was under way before we listened is left alone: what it has drawn already is not known.
        """
        vars(iterator)[_QUEUE] = deque()
        vars(iterator)[_GIVEN] = 0

    def begins(self, loader: Any) -> None:
        """A new iterator of a loader. Do its workers draw the same numbers? Looked into once for each loader."""
        self.describe()
        epoch, self._epoch_from = self.handed - self._epoch_from, self.handed
        self.data.begins(loader, [each.prints for each in self.ring][-epoch:] if 0 < epoch < _RING else ())
        if not self.same_draws and loader.num_workers > 1 and id(loader) not in self._asked:
            self._asked.add(id(loader))
            init, workers = loader.worker_init_fn, loader.num_workers
            self.same_draws = same_draws(loader.dataset, workers, init is not None)
            self.same_draws = self.same_draws or seeded_alike(loader.dataset, workers, init)

    def _note_repeats(self, iterator: Any, indices: tuple[Any, ...]) -> None:
        """A batch of these samples is handed out: the first of its iterator, and the same as the last time?"""
        given = vars(iterator)[_GIVEN] = vars(iterator).get(_GIVEN, 1) + 1
        sampler = getattr(iterator, "_index_sampler", None)
        if given > 1 or not indices:
            self._begun, self.repeated = (0, (), 0), ""
            return
        loader, first, times = self._begun
        times = times + 1 if (loader, first) == (id(sampler), indices) else 1
        self._begun = id(sampler), indices, times
        if times >= _REPEATS and (batches := _length(sampler)) > 1:
            self.repeated = f"a loader of {batches} batches was begun {times} times in a row and gave its first alone"

    def hand_out(self, iterator: Any, batch: Any) -> None:
        """A batch leaves the loader. Host work over a few numbers of each tensor; a batch on a device is not read."""
        queue = vars(iterator).get(_QUEUE)
        index = queue.popleft() if queue else None
        number, self.handed = self.handed, self.handed + 1
        indices = tuple(index) if isinstance(index, list | tuple) else (index,)
        if any(map(operator.is_, indices, repeat(None))) or getattr(iterator, "_in_order", True) is False:
            indices = ()  # an iterable dataset, or workers that hand out in the order in which they finish
        self._note_repeats(iterator, indices)
        if indices:
            self.data.samples.delivered(iterator, indices, batch)
        if self.data.kept.watching and indices:
            self.data.kept.delivered(indices[0], batch)
        every = tensors_in(batch)
        tensors = [tensor for tensor in every if tensor.layout is torch.strided][:8]
        on_host = [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.numel()]
        if all(tensor.device.type == "cpu" for tensor in every):
            self.recent.append(batch)
            self._pieces.append(pieces_of(batch))
            if not fit(self._pieces):
                self.let_go()
        self.describe()
        workers = getattr(iterator, "_num_workers", 0)
        if workers > 1 and vars(iterator)[_GIVEN] == ROUNDS * workers + 1 and not indices:
            self.data.streams.of_workers([each.prints for each in self.ring][-ROUNDS * workers :], workers)
        source = LoaderSource(weakref.ref(iterator), indices)
        self.ring.append(LoaderBatch(indices, number, [weakref.ref(tensor) for tensor in tensors], source))
        self._undescribed = (self.ring[-1], on_host)
        if not self.recent:
            self.describe()  # it is too large to be kept for a moment

    def describe(self) -> None:
        """Take the fingerprint of the batch that was handed out last, if that was put off: a device that waits for the
        next forward should not wait for this."""
        waiting, self._undescribed = self._undescribed, None
        if waiting is not None:
            handed, tensors = waiting
            handed.prints = frozenset(fingerprint(tensor) for tensor in tensors)
            handed.heads = frozenset(heads(tensor) for tensor in tensors if tensor.dim())

    def let_go(self) -> None:
        """Keep no batch alive."""
        self.describe()
        self.recent.clear()
        self._pieces.clear()

    def find(self, arguments: Any) -> FoundSamples | None:
        """The samples behind what a model was given; None where they cannot be told. May read the device."""
        tensors = _dense(arguments)
        handed, how = self._match(tensors)
        if handed is not None:
            self._ahead = self.handed - 1 - handed.number
            indices = _part(handed, tensors) if how == "same tensors" else handed.indices
            return FoundSamples(indices, how) if indices else None
        in_order = self._in_order
        rows = {tensor.size(0) for tensor in tensors if tensor.dim()}
        if in_order is not None and in_order.indices and len(in_order.indices) in rows:
            return FoundSamples(in_order.indices, "order")
        if not self.handed:
            rows_there = self.tables.rows_of(tensors)
            return FoundSamples(rows_there, ROWS) if rows_there is not None else None
        return None

    def source_of(self, key: str | None) -> LoaderSource | None:
        """What made the batch of this name."""
        named = (each for each in reversed(self.ring) if each.indices)
        return next((each.source for each in named if samples_in_words(each.indices) == key), None)

    def name(self, arguments: Any) -> str:
        """How a batch is called: by its samples where a loader showed them, else by its number from 0."""
        found = self.find(arguments)
        if found is not None:
            return found.name
        tensors = _dense(arguments)
        handed, _ = self._match(tensors)
        handed = handed or self._in_order
        if not self.handed:
            return "a batch that no loader handed out"
        return f"batch {handed.number}" if handed is not None else f"batch {max(0, self.handed - 1)} or one before it"

    @property
    def _in_order(self) -> LoaderBatch | None:
        """The batch that is trained on if batches are used in the order in which they came; None where the program
        fetches ahead and how far is not known."""
        ahead = self._ahead
        if ahead is None:
            ahead = None if "accelerate" in sys.modules else 0
        return self.ring[-1 - ahead] if ahead is not None and ahead < len(self.ring) else None

    def _match(self, tensors: list[Tensor]) -> tuple[LoaderBatch | None, str]:
        """The batch that these tensors are of, and how it was recognised."""
        self.describe()
        newest = list(reversed(self.ring))
        for handed in newest:
            alive = [tensor for reference in handed.tensors if (tensor := reference()) is not None]
            if any(tensor is living for tensor in tensors for living in alive):
                return handed, "same tensors"
            # Only memory that is still in use tells anything: a freed address may belong to another batch by now.
            storages = {_address(tensor) for tensor in alive if tensor.device.type == "cpu" and tensor.numel()}
            if any(tensor.device.type == "cpu" and _address(tensor) in storages for tensor in tensors):
                return handed, "same tensors"
        host = [tensor.detach().cpu() for tensor in tensors]
        prints = {fingerprint(tensor) for tensor in host}
        for handed in newest:
            if prints & handed.prints:
                return handed, "same values"
        starts = {heads(tensor) for tensor in host if tensor.dim()}
        alike = [handed for handed in newest if starts & handed.heads]
        return (alike[0], "same values") if len(alike) == 1 else (None, "")


def _part(handed: LoaderBatch, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """The samples of a batch that was handed out, or of the part of it that these tensors are."""
    for reference in handed.tensors:
        whole = reference()
        for tensor in tensors if whole is not None else ():
            if whole is not None and tensor is not whole and _address(tensor) == _address(whole):
                rows = rows_of_view(tensor, whole)
                if rows is not None and rows[-1] < len(handed.indices):
                    return tuple(handed.indices[row] for row in rows)
    return handed.indices


def _dense(arguments: Any) -> list[Tensor]:
    """The tensors among some arguments that lie in memory: not those of a transform (`vmap`), say."""
    found = (tensor for tensor in tensors_in(arguments) if describable(tensor))
    return [tensor for tensor in found if tensor.layout is torch.strided and tensor.numel()]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def with_samples(diagnosis: Diagnosis, found: FoundSamples) -> Diagnosis:
    """The diagnosis with the samples in its rows. Rows beyond the batch are those of the larger tensor itself."""
    rows, indices = diagnosis.rows or (), found.indices
    if found.how == ROWS and any(row >= len(indices) for row in rows) and all(row in indices for row in rows):
        rows = tuple(indices.index(row) for row in rows)
        diagnosis = replace(diagnosis, rows=rows)
    return replace(diagnosis, sample_ids=tuple(str(indices[row]) for row in rows if row < len(indices)))


def bad_rows_of(batch: Any, found: FoundSamples) -> tuple[int, ...]:
    """The rows of the batch that are not finite in the larger tensors that it was cut out of. Reads the device."""
    last = max(found.indices, default=0) if found.how == ROWS else 0
    for tensor in tensors_in(batch) if last else ():
        if has_values(tensor) and tensor.is_floating_point() and tensor.dim() and tensor.shape[0] > last:
            part = tensor.detach()[list(found.indices)].reshape(len(found.indices), -1)
            bad = (~torch.isfinite(part)).any(dim=1).nonzero().flatten().tolist()
            if bad:
                return tuple(bad)
    return ()


def _length(sampler: Any) -> int:
    try:
        return len(sampler)
    except TypeError:
        return 0
