"""The settled steps of one rank as growing columns of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from ...journal.steps.columns import names_of
from ...records.step_record import GPU_MEMORY, GPU_MEMORY_PEAK, HOST_MEMORY, MEMORY
from .norm_matrix import NormMatrix

OVERFLOW = "SY304"
"""The finding of a step that the loss scale refused: normal life of a scale, and no refused batch."""
NUMBERS = ("step", "time", "loss", "grad_norm", "lr", "loss_scale", "applied", "rung")
MAX_TERMS = 12
MAX_ATTEMPTS = 8
"""Of a step that was run again more often, the newest lost attempts are drawn."""


class RankColumns:
    """What one rank has settled so far. `column(name)` is a numpy array, in the order the steps were settled.

    Loss terms are kept for the first MAX_TERMS names, NaN where a step had none of that name.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.heat = NormMatrix()
        self.num_rows = 0
        self._chunks: dict[str, list[Any]] = {name: [] for name in (*NUMBERS, "overflow")}
        self._counts = np.empty(0, dtype=bool)
        self._terms: dict[str, list[tuple[int, Any, Any]]] = {}

    def add(self, batch: Any) -> None:
        """The rows of a record batch, which `journal.steps.step_reader` has checked."""
        if not batch.num_rows:
            return
        for name in NUMBERS:
            self._chunks[name].append(batch.column(name).to_numpy(zero_copy_only=False))
        self._chunks["overflow"].append(_overflowed(batch))
        self._add_terms(batch)
        self._add_norms(batch)
        self.num_rows += batch.num_rows

    def column(self, name: str) -> Any:
        """All values of one column."""
        chunks = self._chunks[name]
        if not chunks:
            return np.empty(0, dtype=bool if name in ("applied", "overflow") else np.float64)
        if len(chunks) > 1:  # joined once and kept so, for a live view asks every second
            chunks[:] = [np.concatenate(chunks)]
        return chunks[0]

    @property
    def counts(self) -> Any:
        """Which rows count. After a rollback or a resume steps are run again and the journal keeps every attempt: a row
        counts if no later row is of the same or an earlier step."""
        if len(self._counts) != self.num_rows:
            steps = self.column("step")
            later = np.minimum.accumulate(steps[::-1])[::-1]
            self._counts = np.append(steps[:-1] < later[1:], True)
        return self._counts

    @property
    def loss_recorded(self) -> bool:
        """Whether a loss was recorded at all. A guard of the optimizer alone records every loss as NaN or zero, while
        all the gradients are finite; where the loss itself turned NaN, they are not."""
        loss, norm, applied = self.final("loss"), self.final("grad_norm"), self.final("applied").astype(bool)
        return bool(loss[np.isfinite(loss)].any()) or not bool(np.isfinite(norm[applied]).all())

    def final(self, name: str) -> Any:
        """The values of one column in the rows that count, so in the order of steps."""
        return self._that_count(self.column(name))

    def final_term(self, name: str) -> Any:
        """The values of one loss term in the rows that count."""
        return self._that_count(self.term(name))

    def earlier(self, name: str) -> list[tuple[int, Any, Any]]:
        """(attempt, steps, values) of the attempts that were rolled back or lost, numbered from 1, oldest first."""
        lost = np.flatnonzero(~self.counts)
        if not len(lost):
            return []
        steps, values = self.column("step"), self.column(name)
        attempts = _attempts(steps)
        numbers = np.unique(attempts[lost])[-MAX_ATTEMPTS:]
        chosen = [(int(number), lost[attempts[lost] == number]) for number in numbers]
        return [(number, steps[rows], values[rows]) for number, rows in chosen]

    def _that_count(self, values: Any) -> Any:
        return values if self.counts.all() else values[self.counts]

    def last(self, name: str) -> float | None:
        """The newest value of a column, None before the first."""
        chunks = self._chunks[name]
        return float(chunks[-1][-1]) if chunks else None

    @property
    def refused(self) -> Any:
        """Which of the rows that count were refused, leaving out those the loss scale refused."""
        return ~self.final("applied") & ~self.final("overflow")

    @property
    def term_names(self) -> list[str]:
        return [name for name in self._terms if name not in MEMORY]

    def memory(self, *, peak: bool = False) -> tuple[str, Any, Any]:
        """Of what, at which steps and how many bytes: the GPU's where it was sampled, else those of the process."""
        gpu = GPU_MEMORY_PEAK if peak else GPU_MEMORY
        what, name = ("GPU", gpu) if gpu in self._terms else ("host", HOST_MEMORY)
        values = self.term(name)
        sampled = np.isfinite(values)
        return what, self.column("step")[sampled], values[sampled]

    def term(self, name: str) -> Any:
        """The values of one loss term, a row each."""
        values = np.full(self.num_rows, np.nan)
        for start, rows, numbers in self._terms.get(name, ()):
            values[start + rows] = numbers
        return values

    def _add_terms(self, batch: Any) -> None:
        column = batch.column("terms")
        offsets = np.asarray(column.offsets)
        if offsets[-1] == offsets[0]:
            return
        rows = np.repeat(np.arange(batch.num_rows), np.diff(offsets))
        # `keys` and `items` hold the whole buffer even of a slice, so the offsets decide where this batch's begin.
        keys, items = (part.slice(offsets[0], offsets[-1] - offsets[0]) for part in (column.keys, column.items))
        coded = keys.dictionary_encode()
        codes, values = np.asarray(coded.indices), np.asarray(items)
        for code, name in enumerate(coded.dictionary.to_pylist()):
            if name in self._terms or name in MEMORY or len(self._terms) < MAX_TERMS:
                chosen = codes == code
                self._terms.setdefault(name, []).append((self.num_rows, rows[chosen], values[chosen]))

    def _add_norms(self, batch: Any) -> None:
        rows, steps, matrix = norms_of(batch)
        if len(rows):
            self.heat.add(steps, matrix, names_of(batch.schema))


def _attempts(steps: Any) -> Any:
    """For every row, which attempt at its step it is: 1 for the first."""
    order = np.argsort(steps, kind="stable")
    begins = np.flatnonzero(np.diff(steps[order], prepend=steps[order][0] - 1))
    found = np.empty(len(steps), dtype=np.int64)
    found[order] = np.arange(len(steps)) - np.repeat(begins, np.diff(np.append(begins, len(steps)))) + 1
    return found


def norms_of(batch: Any) -> tuple[Any, Any, Any]:
    """The rows of a batch that carry norms: their places, their steps, and the norms as a matrix, a row each.

    Rows that speak of another number of tensors than the first are left out: they cannot be named.
    """
    column = batch.column("norms")
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
    width = int(lengths[lengths > 0][0]) if (lengths > 0).any() else 0
    flat = np.asarray(column.flatten())
    owner = np.repeat(np.arange(batch.num_rows), lengths)
    rows = np.flatnonzero(lengths == width) if width else np.empty(0, dtype=np.int64)
    matrix = flat[np.isin(owner, rows)].reshape(len(rows), width)
    return rows, batch.column("step").to_numpy()[rows], matrix


def _overflowed(batch: Any) -> Any:
    flags = batch.column("flags")
    marked = np.zeros(batch.num_rows, dtype=bool)
    for place in np.flatnonzero(np.asarray(pc.list_value_length(flags)) > 0):
        marked[place] = flags[int(place)].as_py()[0] == OVERFLOW
    # A step can carry a note about its scale and still be applied.
    return marked & ~batch.column("applied").to_numpy(zero_copy_only=False)
