"""Counting what is in a block of values: NaN, Inf, zeros, subnormals, the largest magnitude.

The quick look takes the smallest and largest bit pattern, once as signed and once as unsigned integers. Signed, the
positive numbers come out on top; unsigned, the negative ones; so four reductions over a block that is still in the
cache bound the magnitudes of both from below and above, and no copy is made. Only where they show something to count
is the block gone through again. The two smallest tell only of zeros and subnormal values, and in a large tensor every
eighth block is enough for that; NaN, Inf and the largest magnitude are looked for in every value. Nothing here depends
on the format beyond its FloatKind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .formats.float_formats import FloatKind

_most, _least = np.maximum.reduce, np.minimum.reduce
_THOROUGH = 1 << 14  # values at a time for the thorough count, so that its temporaries stay in the cache


@dataclass(slots=True)
class ValueCounts:
    """Running counts over the blocks of one tensor. `largest` is a bit pattern without its sign, -1 for none yet;
    `first_bad` is the place of the first value that is not finite. Zeros and subnormal values were counted among
    `num_counted` of the values."""

    num_values: int = 0
    num_counted: int = 0
    num_nan: int = 0
    num_inf: int = 0
    num_zero: int = 0
    num_subnormal: int = 0
    num_saturated: int = 0
    num_positive_extremes: int = 0
    largest: int = -1
    first_bad: int | None = None

    def add(self, other: ValueCounts) -> None:
        """Take in the counts of another part of the same tensor."""
        self.num_values += other.num_values
        self.num_counted += other.num_counted
        self.num_nan += other.num_nan
        self.num_inf += other.num_inf
        self.num_zero += other.num_zero
        self.num_subnormal += other.num_subnormal
        self.num_saturated += other.num_saturated
        self.num_positive_extremes += other.num_positive_extremes
        self.largest = max(self.largest, other.largest)
        if other.first_bad is not None:
            self.first_bad = other.first_bad if self.first_bad is None else min(self.first_bad, other.first_bad)


def count(
    values: Any, kind: FloatKind, tally: ValueCounts, *, start: int = 0, signed: Any = None, small_ones: bool = True
) -> None:
    """Add a block, given as an array of the kind's unsigned integers, to a tally. `start` is where it begins.

    `signed` is the same block as signed integers, for a caller who has that view already. Without `small_ones` zeros
    and subnormal values are not looked for, unless the block holds nothing but zeros. Allocates nothing for a block
    with nothing remarkable in it.
    """
    size = values.size
    if not size:
        return
    tally.num_values += size
    if signed is None:
        signed = values.view(f"<i{kind.width}")
    largest = int(_most(values))
    if kind.signed:
        # Unsigned, a negative number is the largest there is; signed, a positive one.
        largest = max(int(_most(signed)), largest & kind.mask if largest >= kind.sign else 0)
    bad = int(_least(signed)) == -kind.sign if kind.nan_is_minus_zero else largest >= kind.not_finite
    if bad or (kind.absurd is not None and largest >= kind.absurd):
        tally.num_counted += size
        for at in range(0, size, _THOROUGH):
            _count_all(values[at : at + _THOROUGH], kind, tally, start + at)
        return
    if largest > tally.largest:
        tally.largest = largest
    if largest == 0 and kind.signed:
        tally.num_counted += size
        tally.num_zero += size
    elif small_ones and kind.signed and kind.count_subnormals:
        tally.num_counted += size
        low, low_negative = int(_least(values)), int(_least(signed))
        smallest = low if low < kind.sign else kind.mask
        if low_negative < 0:
            smallest = min(smallest, low_negative + kind.sign)
        if smallest < kind.smallest_normal:
            _count_small(values & values.dtype.type(kind.mask), kind, tally)


def _count_small(magnitudes: Any, kind: FloatKind, tally: ValueCounts) -> None:
    zeros = int(magnitudes.size) - int(np.count_nonzero(magnitudes))
    tally.num_zero += zeros
    if kind.count_subnormals:
        tally.num_subnormal += int(np.count_nonzero(magnitudes < kind.smallest_normal)) - zeros


def _count_all(values: Any, kind: FloatKind, tally: ValueCounts, start: int) -> None:
    """The thorough way, for a block that holds something bad."""
    if kind.nan_is_minus_zero:
        not_finite = values == kind.sign
        num_nan, num_inf = int(np.count_nonzero(not_finite)), 0
        magnitudes = np.where(not_finite, 0, values & values.dtype.type(kind.mask))
    else:
        magnitudes = values & values.dtype.type(kind.mask) if kind.signed else values
        not_finite = magnitudes >= kind.not_finite
        num_nan = int(np.count_nonzero(magnitudes >= kind.first_nan))
        num_inf = int(np.count_nonzero(not_finite)) - num_nan
    tally.num_nan += num_nan
    tally.num_inf += num_inf
    tally.num_positive_extremes += int(np.count_nonzero(values == kind.largest))
    if kind.infinity is not None:
        tally.num_positive_extremes += int(np.count_nonzero(values == kind.infinity))
    if num_nan or num_inf:
        first = start + int(np.argmax(not_finite))
        tally.first_bad = first if tally.first_bad is None else min(first, tally.first_bad)
    finite = magnitudes[~not_finite] if num_nan or num_inf else magnitudes
    if not finite.size:
        return
    tally.largest = max(tally.largest, int(finite.max()))
    tally.num_saturated += int(np.count_nonzero(finite == kind.largest))
    if kind.signed:
        _count_small(finite, kind, tally)
