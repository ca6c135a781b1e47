"""Norms of many tensors over many steps in bounded memory: a matrix whose columns grow wider as the run grows longer.

A column stands for `width` steps in a row and holds the largest norm each tensor had in them. A NaN beats everything
and an infinity every finite number, so that no bad value is lost however wide the columns are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MAX_COLUMNS = 480


class NormMatrix:
    """`add` takes rows of norms as they come; `table` gives the names, the first step of every column, the matrix."""

    def __init__(self, max_columns: int = MAX_COLUMNS) -> None:
        self.width = 1
        self.names: list[str] = []
        self._places: dict[str, int] = {}
        self._columns: dict[int, Any] = {}
        self._max_columns = max(2, max_columns)

    def add(self, steps: Any, matrix: Any, names: Sequence[str]) -> None:
        """`matrix[i, j]` is the norm of the tensor `names[j]` at `steps[i]`. Rows may come in any order."""
        known = min(matrix.shape[1], len(names))
        if not known or not len(steps):
            return
        places = np.array([self._place(name) for name in names[:known]])
        while len(set((steps // self.width).tolist()) | set(self._columns)) > self._max_columns:
            self._widen()
        buckets = steps // self.width
        order = np.argsort(buckets, kind="stable")
        starts = np.flatnonzero(np.diff(buckets[order], prepend=buckets[order][0] - 1))
        with np.errstate(invalid="ignore"):  # numpy warns of a signalling NaN, which is what is looked for here
            largest = np.maximum.reduceat(matrix[order, :known], starts, axis=0)
        for bucket, row in zip(buckets[order][starts].tolist(), largest, strict=True):
            self._merge(bucket, places, row)

    def table(self) -> tuple[list[str], Any, Any]:
        """Names (n), first steps (k) and norms (n x k); -1 where nothing was measured."""
        buckets = sorted(self._columns)
        matrix = np.full((len(self.names), len(buckets)), -1, dtype=np.float32)
        for place, bucket in enumerate(buckets):
            column = self._columns[bucket]
            matrix[: len(column), place] = column
        return list(self.names), np.array(buckets, dtype=np.int64) * self.width, matrix

    def newest(self) -> tuple[list[str], Any]:
        """Names and norms of the newest column."""
        if not self._columns:
            return [], np.empty(0, dtype=np.float32)
        column = self._columns[max(self._columns)]
        return self.names[: len(column)], column

    def _place(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = len(self.names)
            self.names.append(name)
        return self._places[name]

    def _merge(self, bucket: int, places: Any, row: Any) -> None:
        column = self._columns.get(bucket)
        if column is None or len(column) < len(self.names):
            grown = np.full(len(self.names), -1, dtype=np.float32)
            grown[: 0 if column is None else len(column)] = () if column is None else column
            self._columns[bucket] = column = grown
        with np.errstate(invalid="ignore"):
            column[places] = np.maximum(column[places], row)

    def _widen(self) -> None:
        self.width *= 2
        narrow, self._columns = self._columns, {}
        for bucket, column in narrow.items():
            self._merge(bucket // 2, np.arange(len(column)), column)


def grouped(names: list[str], matrix: Any, *, limit: int) -> tuple[list[str], Any]:
    """Rows merged by the beginning of their names until there are at most `limit`: the largest norm of each group."""
    keys = list(names)
    depth = max((name.count(".") for name in names), default=0)
    while len(set(keys)) > limit and depth > 0:
        keys = [".".join(name.split(".")[:depth]) for name in names]
        depth -= 1
    order = list(dict.fromkeys(keys))
    places = {key: place for place, key in enumerate(order)}
    rows = np.full((len(order), matrix.shape[1]), -1, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        np.maximum.at(rows, np.array([places[key] for key in keys], dtype=np.int64), matrix)
    return order[:limit], rows[:limit]
