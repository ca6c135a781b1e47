"""The rows of a data set as facts: how many labels teach, what is cut off, what is not a number.

Rows are mappings of columns, as tokenised data sets give them, or pairs of features and label. A batch is taken apart
into its rows. Only numbers are looked at; text columns are passed over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...records.checks.checkup import DataStatistics, Spread
from ...records.errors import UsageError
from .facts import Data

IGNORED = -100
MOST_NAMED = 50
Row = dict[str, NDArray[Any]]


def read_rows(
    dataset: Any,
    *,
    tokenizer: Any = None,
    max_length: int | None = None,
    max_rows: int = 2000,
    generates: bool = False,
    num_embeddings: int | None = None,
    max_positions: int | None = None,
) -> Data:
    """The facts of the first `max_rows` rows. Reads the data set from its start; a generator is used up by it."""
    eos, pad = (_token(tokenizer, name) for name in ("eos_token_id", "pad_token_id"))
    tally = RowTally(eos=eos, pad=pad, num_embeddings=num_embeddings, max_positions=max_positions)
    for number, row in enumerate(itertools.islice(rows_of(dataset), max_rows)):
        tally.add(number, row)
    if not tally.num_rows:
        raise UsageError("The data set has no rows, so there is nothing to look at or to train on.")
    total = len(dataset) if hasattr(dataset, "__len__") and not _is_batched(dataset) else 0
    return tally.facts(max_length=max_length, total=total, generates=generates)


def rows_of(dataset: Any) -> Iterator[Row]:
    """One row after the other, whatever they come in."""
    items: Iterable[Any]
    if isinstance(dataset, Mapping):
        items = [dataset]
    elif hasattr(dataset, "__iter__"):
        items = dataset
    elif hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        items = (dataset[number] for number in range(len(dataset)))
    else:
        raise UsageError(f"dataset= takes rows, a data set or a loader, not a {type(dataset).__name__}.")
    for item in items:
        yield from _split(_columns(item))


def _columns(item: Any) -> Row:
    if isinstance(item, Mapping) or hasattr(item, "keys"):
        pairs = [(str(key), item[key]) for key in item]
    elif isinstance(item, tuple | list):
        pairs = [(str(number), value) for number, value in enumerate(item)]
    else:
        pairs = [("0", item)]
    found = {key: _array(value) for key, value in pairs}
    return {key: value for key, value in found.items() if value is not None}


def _array(value: Any) -> NDArray[Any] | None:
    """Numbers as an array; None for text, images in objects, ragged lists and whatever else is no number."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float().numpy() if "bfloat16" in str(value.dtype) else value.numpy()
    if value is None or isinstance(value, str | bytes):
        return None
    try:
        found = np.asarray(value)
    except (ValueError, TypeError):
        return None
    return found if found.dtype.kind in "iufb" else None


def _split(columns: Row) -> Iterator[Row]:
    """A batch as its rows: token columns of two dimensions with one first length."""
    tokens = [value for key, value in columns.items() if key in ("input_ids", "labels", "attention_mask")]
    if tokens and all(value.ndim == 2 for value in tokens):
        size = tokens[0].shape[0]
        for number in range(size):
            yield {key: value[number] for key, value in columns.items() if value.ndim and value.shape[0] == size}
    elif columns:
        yield columns


def _is_batched(dataset: Any) -> bool:
    return hasattr(dataset, "batch_size") or isinstance(dataset, Mapping)


def _token(tokenizer: Any, name: str) -> int | None:
    value = getattr(tokenizer, name, None)
    return value if isinstance(value, int) else None


class RowTally:
    """Counts over rows. It holds numbers a row, never the rows."""

    def __init__(
        self, *, eos: int | None, pad: int | None, num_embeddings: int | None, max_positions: int | None
    ) -> None:
        self.eos, self.pad, self.num_embeddings, self.max_positions = eos, pad, num_embeddings, max_positions
        self.num_rows = self.num_tokens = self.num_pads = 0
        self.num_labels = self.num_taught = self.with_eos = self.eos_taught = 0
        self.left_padded = self.right_padded = 0
        self.columns: dict[str, None] = {}
        self.lengths: list[int] = []
        self.taught: list[int] = []
        self.ends_with_eos: list[bool] = []
        self.row_numbers: list[int] = []
        self.nothing: list[int] = []
        self.empty: list[int] = []
        self.too_long: list[int] = []
        self.non_finite: list[tuple[int, str]] = []
        self.strange: list[tuple[int, int]] = []
        self.largest: int | None = None
        self.smallest: int | None = None
        self.row_of_largest = 0

    def add(self, number: int, row: Row) -> None:
        """Count one row."""
        self.num_rows += 1
        self.columns |= dict.fromkeys(row)
        for key, value in row.items():
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                self.non_finite.append((number, key))
        ids = row.get("input_ids")
        if ids is not None and ids.ndim == 1 and ids.dtype.kind in "iu":
            self._add_tokens(number, ids, row.get("attention_mask"))
        labels = row.get("labels")
        if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu":
            self._add_labels(number, labels)

    def _add_tokens(self, number: int, ids: NDArray[Any], mask: NDArray[Any] | None) -> None:
        if mask is not None and mask.shape == ids.shape:
            real = mask != 0
        elif self.pad is not None and self.pad != self.eos:
            real = ids != self.pad
        else:
            real = np.ones(ids.shape, dtype=bool)
        seen = ids[real]
        self.num_tokens += ids.size
        self.num_pads += ids.size - seen.size
        self.lengths.append(int(seen.size))
        self.row_numbers.append(number)
        if not seen.size:
            self.empty.append(number)
            self.ends_with_eos.append(False)
            return
        self.left_padded += bool(not real[0])
        self.right_padded += bool(not real[-1])
        self.ends_with_eos.append(self.eos is not None and int(seen[-1]) == self.eos)
        self.with_eos += self.eos is not None and bool((seen == self.eos).any())
        if self.max_positions is not None and ids.size > self.max_positions:
            self.too_long.append(number)
        top, bottom = int(ids.max()), int(ids.min())
        if self.largest is None or top > self.largest:
            self.largest, self.row_of_largest = top, number
        self.smallest = bottom if self.smallest is None else min(self.smallest, bottom)

    def _add_labels(self, number: int, labels: NDArray[Any]) -> None:
        taught = labels[labels != IGNORED]
        self.num_labels += labels.size
        self.num_taught += taught.size
        self.taught.append(int(taught.size))
        if not taught.size:
            self.nothing.append(number)
            return
        self.eos_taught += self.eos is not None and bool((taught == self.eos).any())
        wrong = taught[
            (taught < 0) | (taught >= self.num_embeddings if self.num_embeddings is not None else taught < 0)
        ]
        if wrong.size:
            self.strange.append((number, int(wrong[0])))

    def facts(self, *, max_length: int | None, total: int, generates: bool) -> Data:
        """Everything counted, with the rows that end at the maximum length told apart."""
        limit = max_length if max_length is not None else _shared_maximum(self.lengths)
        full = [place for place, length in enumerate(self.lengths) if limit is not None and length >= limit]
        # Where no shorter row ends with the end token, its absence at the limit says nothing.
        others_end = any(ends and place not in set(full) for place, ends in enumerate(self.ends_with_eos))
        cut = [self.row_numbers[place] for place in full if others_end and not self.ends_with_eos[place]]
        statistics = DataStatistics(
            num_rows=max(total, self.num_rows),
            num_rows_seen=self.num_rows,
            columns=tuple(self.columns),
            num_tokens=self.num_tokens,
            num_pad_tokens=self.num_pads,
            lengths=_spread(self.lengths),
            num_label_tokens=self.num_labels,
            num_taught_tokens=self.num_taught,
            num_rows_taught_nothing=len(self.nothing),
            taught_lengths=_spread(self.taught),
            max_length=limit,
            num_rows_at_max_length=len(full),
            num_rows_cut=len(cut),
            num_rows_with_eos=self.with_eos,
            num_rows_eos_taught=self.eos_taught,
        )
        return Data(
            statistics=statistics,
            rows_taught_nothing=tuple(self.nothing[:MOST_NAMED]),
            rows_cut=tuple(cut[:MOST_NAMED]),
            rows_empty_mask=tuple(self.empty),
            rows_non_finite=tuple(self.non_finite),
            rows_too_long=tuple(self.too_long),
            largest_token=self.largest,
            smallest_token=self.smallest,
            row_of_largest=self.row_of_largest,
            strange_labels=tuple(self.strange),
            eos=self.eos,
            pad=self.pad,
            num_left_padded=self.left_padded,
            num_right_padded=self.right_padded,
            generates=generates,
            num_embeddings=self.num_embeddings,
            max_positions=self.max_positions,
        )


def _shared_maximum(lengths: list[int]) -> int | None:
    """The largest length, if so many rows share it that something must have cut them there."""
    if not lengths or min(lengths) == max(lengths):
        return None
    largest = max(lengths)
    return largest if lengths.count(largest) >= max(3, len(lengths) // 100) else None


def _spread(values: list[int]) -> Spread:
    if not values:
        return Spread()
    found = np.asarray(values)
    return Spread(
        smallest=int(found.min()),
        median=float(np.median(found)),
        p95=float(np.percentile(found, 95)),
        largest=int(found.max()),
    )
