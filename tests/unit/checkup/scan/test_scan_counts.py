"""The counts of every floating-point format agree with torch's own, on all its bit patterns and on random ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from steadygrad.checkup.scan.formats.float_formats import E8M0, FLOATS, FloatKind
from steadygrad.checkup.scan.value_counts import ValueCounts, count

KINDS = sorted(FLOATS)


def tally_of(values: torch.Tensor, kind: FloatKind) -> ValueCounts:
    tally = ValueCounts()
    count(values.view(torch.uint8).numpy().view(kind.unsigned), kind, tally)
    return tally


def truth_of(values: torch.Tensor, kind: FloatKind) -> dict[str, float]:
    """The same counts by way of float64, which holds every value of every other format exactly."""
    wide = values.to(torch.float64)
    finite = wide[torch.isfinite(wide)].abs()
    smallest_normal = torch.finfo(values.dtype).smallest_normal
    subnormal = (finite > 0) & (finite < smallest_normal)
    return {
        "nan": int(torch.isnan(wide).sum()),
        "inf": int(torch.isinf(wide).sum()),
        "zero": int((wide == 0).sum()),
        "subnormal": int(subnormal.sum()) if kind.count_subnormals else 0,
        "largest": float(finite.max()) if finite.numel() else 0.0,
    }


def told(tally: ValueCounts, kind: FloatKind) -> dict[str, float]:
    return {
        "nan": tally.num_nan,
        "inf": tally.num_inf,
        "zero": tally.num_zero,
        "subnormal": tally.num_subnormal,
        "largest": kind.value(tally.largest) if tally.largest >= 0 else 0.0,
    }


def patterns(kind: FloatKind) -> torch.Tensor:
    """Every bit pattern of an 8- or 16-bit format; of a wider one the edges and many random ones."""
    if kind.width <= 2:
        bits = np.arange(1 << (8 * kind.width), dtype=np.int64).astype(kind.unsigned)
    else:
        edges = [0, 1, kind.smallest_normal - 1, kind.smallest_normal, kind.largest, kind.not_finite, kind.first_nan]
        random = np.random.default_rng(0).integers(0, 1 << 63, 20_000, dtype=np.uint64)
        both = np.array([*edges, *(edge | kind.sign for edge in edges)], dtype=np.uint64)
        bits = np.concatenate([both, random % np.uint64(1 << (8 * kind.width - 1))]).astype(kind.unsigned)
    return torch.from_numpy(bits.view(np.uint8).copy()).view(getattr(torch, kind.name))


@pytest.mark.parametrize("name", KINDS)
def test_all_bit_patterns_together_are_counted_as_torch_counts_them(name: str) -> None:
    kind = FLOATS[name]
    values = patterns(kind)
    if kind is E8M0:
        assert tally_of(values, kind).num_nan == int(torch.isnan(values.float()).sum()) == 1
        return
    assert told(tally_of(values, kind), kind) == truth_of(values, kind)


@pytest.mark.parametrize("name", [name for name in KINDS if FLOATS[name].width <= 2])
def test_every_single_bit_pattern_is_counted_as_torch_counts_it(name: str) -> None:
    """One value a block, so that a wrong verdict cannot hide behind another value."""
    kind = FLOATS[name]
    values = patterns(kind)[:: 1 if kind.width == 1 else 37].clone()
    wide = values.to(torch.float64 if kind is not E8M0 else torch.float32)
    seen = 0
    for value, truth in zip(values.split(1), wide.tolist(), strict=True):
        tally = tally_of(value, kind)
        assert (tally.num_nan, tally.num_inf) == (int(math.isnan(truth)), int(math.isinf(truth))), truth
        if math.isfinite(truth):
            assert kind.value(tally.largest) == abs(truth)
        seen += 1
    assert seen >= 256


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-38])
def test_random_blocks_of_both_signs_are_counted_as_torch_counts_them(name: str, scale: float) -> None:
    kind, dtype = FLOATS[name], getattr(torch, name)
    generator = torch.Generator().manual_seed(1)
    for shape, shift in ((1000, 0.0), (1000, 5.0), (1000, -5.0), (1, 1.0), (3, -1.0)):
        values = ((torch.randn(shape, generator=generator, dtype=torch.float64) + shift) * scale).to(dtype)
        values[: shape // 3 : 2] = 0.0
        assert told(tally_of(values, kind), kind) == truth_of(values, kind)


def test_the_first_bad_value_is_found_whatever_block_it_is_in() -> None:
    values = torch.ones(100_000)
    values[70_001] = math.nan
    values[90_000] = math.inf
    tally = tally_of(values, FLOATS["float32"])
    assert (tally.first_bad, tally.num_nan, tally.num_inf) == (70_001, 1, 1)


def test_a_block_without_a_look_at_small_values_still_finds_nan_and_counts_nothing_else() -> None:
    kind = FLOATS["float32"]
    values = torch.tensor([1e-40, 0.0, 2.0])
    tally = ValueCounts()
    count(values.numpy().view(kind.unsigned), kind, tally, small_ones=False)
    assert (tally.num_counted, tally.num_subnormal, tally.num_zero) == (0, 0, 0)
    assert kind.value(tally.largest) == 2.0
    values[1] = math.nan
    count(values.numpy().view(kind.unsigned), kind, tally, small_ones=False)
    assert tally.num_nan == 1


def test_an_empty_block_counts_nothing() -> None:
    tally = ValueCounts()
    count(np.empty(0, np.uint32), FLOATS["float32"], tally)
    assert tally == ValueCounts()
