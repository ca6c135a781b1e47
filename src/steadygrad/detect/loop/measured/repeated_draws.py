"""Whether batches that are drawn at random come again, bit for bit: every epoch draws the same augmentations.

Looks at what the model is given, in host memory, at the first updates. That the data set draws at all is asked of a
copy of it, once, when batches have come again that were made anew; and only where the loaders of the process have one
data set. Without loaders the process must have one data set, and the batches of both epochs at once.
"""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor
from torch.utils.data import ChainDataset, ConcatDataset, DataLoader, Dataset, Subset
from torch.utils.weak import TensorWeakRef

from ...tensors.foreign_objects import isinstance
from ...tensors.living_objects import living
from .worker_seeds import draws_at_random

_IN_A_ROW = 2
_WRAPPERS = (Subset, ConcatDataset, ChainDataset)
_MAX_BYTES = 1 << 16
"""Of a batch so many bytes are compared: in drawn numbers no two batches begin alike."""


class RepeatedDraws:
    """Called once for each of the first updates."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], tuple[int, int, TensorWeakRef]] = {}
        self._number = self._row = self._period = 0
        self._both = False
        """Whether the batch that came again is there twice."""
        self.done = False
        self.found = ""
        """How, as a sentence; or nothing."""

    def called(self, original: Tensor) -> None:
        given = original.detach()
        number, self._number = self._number, self._number + 1
        whole = given.contiguous()
        key = (given.shape, given.dtype, hash(ctypes.string_at(whole.data_ptr(), min(_MAX_BYTES, whole.nbytes))))
        before, place, earlier = self._seen.get(key, (number, 0, TensorWeakRef(given)))
        self._seen[key] = number, given.data_ptr(), TensorWeakRef(original)
        self._both = earlier() is not None
        period = number - before
        # The same memory again is a batch that is kept on purpose; one after another is for another rule.
        again = period > 1 and place != given.data_ptr()
        self._row = self._row + 1 if again and period == self._period else int(again)
        self._period = period if again else 0
        if self._row >= _IN_A_ROW:
            self.done = True
            self._ask(given)

    def _ask(self, given: Tensor) -> None:
        datasets = {id(loader.dataset): loader.dataset for loader in living(DataLoader)}
        if not datasets and self._both:  # samples that are kept and put together anew are not there twice
            datasets = {id(dataset): dataset for dataset in living(Dataset) if not isinstance(dataset, _WRAPPERS)}
        if len(datasets) != 1:  # of several it is not known which one this training reads
            return
        for dataset in datasets.values():
            if generator := draws_at_random(dataset, given.shape[1:]):
                self.found = (
                    f"the batch of {self._period} updates ago came again, bit for bit, though {generator} draws other "
                    "numbers each time: every epoch begins with a copy of it in the same state"
                )
                return
