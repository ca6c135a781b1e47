"""Whether what a program trains on is delivered again and again by loaders of a fixed order: epochs that end early and
begin at the first sample again, and workers that all read all of a stream.

The fingerprints of batches that are taken anyway are compared when an epoch begins, and once after a few batches of
several workers. What they show is looked into with a copy of the data set.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, SequentialSampler
from torch.utils.weak import WeakIdKeyDictionary

from ...tensors.foreign_objects import isinstance
from .asked_copies import ask_copy

_EPOCHS = 4
"""So many epochs in a row must have been cut at the same place."""
_SHARE = 4
"""There must be so many times as many samples as are delivered."""
ROUNDS = 3
"""So many batches of each worker are compared."""
_MAX_SAMPLES = 1 << 16

Prints = frozenset[Any]


class RepeatedStreams:
    """The loaders of one program."""

    def __init__(self) -> None:
        self.found = ""
        """How the same batches are delivered again and again: a sentence, or nothing."""
        self._now: Callable[[], Any] = lambda: None
        """The data set of the epoch under way."""
        self._same: MutableMapping[Any, tuple[list[Prints], int]] = WeakIdKeyDictionary()
        """By data set, by identity: the batches of its last epoch, and how many epochs in a row had these."""
        self._asked: MutableMapping[Any, bool] = WeakIdKeyDictionary()

    def begins(self, loader: Any, epoch: Sequence[Prints], *, trained: bool) -> None:
        """An epoch begins. `epoch` has all batches since the one before began, nothing where not all are known."""
        before, dataset = self._now(), loader.dataset
        try:
            self._now = weakref.ref(dataset)
            if before is not None:
                self._ended(before, list(epoch), trained)
            batches, times = self._same.get(dataset, ([], 0))
            if times >= _EPOCHS and not self.found and dataset not in self._asked:
                self._asked[dataset] = True
                self._judge(loader, len(batches), times)
        except TypeError:  # a data set of a kind that cannot be referred to, such as a list
            self._now = lambda: None

    def _ended(self, dataset: Any, epoch: list[Prints], trained: bool) -> None:
        if not trained or len(epoch) < 2 or not all(epoch):
            self._same.pop(dataset, None)
            return
        batches, times = self._same.get(dataset, ([], 0))
        self._same[dataset] = epoch, times + 1 if epoch == batches else 1

    def _judge(self, loader: Any, count: int, times: int) -> None:
        streams = isinstance(loader.dataset, IterableDataset)
        if not streams and type(loader.sampler) is not SequentialSampler:
            return
        samples = count * (loader.batch_size or 1)
        if self._has(loader, _SHARE * samples, streams):
            self.found = (
                f"in each of {times} epochs the loader was begun anew and gave its first {count} batches alone, and "
                f"there are more than {_SHARE} times as many samples"
            )

    def _has(self, loader: Any, samples: int, streams: bool) -> bool:
        """Whether there are more samples than these, by the data set's own account or that of a copy."""
        try:
            return len(loader.dataset) > samples
        except TypeError:
            pass
        if not streams or samples > _MAX_SAMPLES:
            return False
        more = ask_copy(loader.dataset, lambda copy: sum(1 for _ in islice(iter(copy()), samples + 1)) > samples)
        return bool(more)

    def of_workers(self, prints: Sequence[Prints], workers: int) -> None:
        """The first batches of a stream that several workers read, in turn: is each the same as that of the others?"""
        rounds = [prints[place : place + workers] for place in range(0, len(prints), workers)]
        alike = all(len(each) == workers and each[0] and len(set(each)) == 1 for each in rounds)
        if not self.found and len(rounds) == ROUNDS and alike and len({each[0] for each in rounds}) == ROUNDS:
            self.found = (
                f"each of {workers} workers reads all of the stream, so each batch is delivered {workers} times"
            )
