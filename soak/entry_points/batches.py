"""A regime's batches as a data set, for frameworks that want a DataLoader."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from ..training import Training


class Batches(Dataset[Any]):
    """The regime's batches in their order, whatever index is asked for."""

    def __init__(self, training: Training, length: int) -> None:
        self._training, self._length = training, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return next(self._training.batches)
