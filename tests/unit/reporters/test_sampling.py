"""Few points to draw, and no extreme, no gap and no bad value lost among them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadygrad.reporters.run_data.downsample import moving_mean, sampled, success_rate
from steadygrad.reporters.run_data.norm_matrix import NormMatrix, grouped

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=300)


@settings(max_examples=60, deadline=None)
@given(values=VALUES, limit=st.integers(1, 40))
def test_the_lowest_and_the_highest_value_survive(values: list[float], limit: int) -> None:
    points = sampled(np.arange(len(values)), np.array(values), limit=limit)
    finite = [value for value in values if math.isfinite(value)]
    low = [value for value in points.get("low", points["mid"]) if value is not None]
    high = [value for value in points.get("high", points["mid"]) if value is not None]
    assert len(points["x"]) == min(len(values), limit)
    assert bool(finite) == bool(low)
    if finite:
        assert min(low) == pytest.approx(min(finite), rel=1e-4, abs=0)
        assert max(high) == pytest.approx(max(finite), rel=1e-4, abs=0)


def test_one_spike_among_two_hundred_thousand_steps_is_still_there() -> None:
    values = np.ones(200_000)
    values[123_456] = 77.0
    points = sampled(np.arange(200_000), values, limit=1000)
    (place,) = [place for place, value in enumerate(points["high"]) if value == 77.0]
    assert points["x"][place] <= 123_456 < points["x"][place + 1]
    assert points["low"][place] == 1.0


def test_a_short_run_is_drawn_step_by_step_with_gaps_where_nothing_is_finite() -> None:
    points = sampled(np.array([3, 1, 2]), np.array([30.0, 10.0, math.nan]), limit=10)
    assert points == {"x": [1, 2, 3], "mid": [10.0, None, 30.0]}


def test_a_mean_of_numbers_near_the_largest_does_not_overflow() -> None:
    values = np.full(100, 1.7e308)
    assert sampled(np.arange(100), values, limit=5)["mid"] == [1.7e308] * 5
    points = {"x": list(range(100))}
    assert moving_mean(np.arange(100), values, points=points) == pytest.approx([1.7e308] * 100)


def test_a_moving_mean_follows_a_line_and_passes_over_what_is_not_finite() -> None:
    steps, values = np.arange(1200), np.arange(1200, dtype=np.float64)
    values[600] = math.nan
    points = sampled(steps, values, limit=1200)
    smooth = moving_mean(steps, values, points=points)
    assert smooth[300] == pytest.approx(300.0)
    assert smooth[600] == pytest.approx(600.0, abs=0.6)


def test_the_success_rate_leaves_out_what_the_loss_scale_refused() -> None:
    applied = np.array([True, False, False, True])
    overflow = np.array([False, True, False, False])
    assert success_rate(applied, overflow, window=10).tolist() == pytest.approx([1.0, 1.0, 1 / 2, 2 / 3])
    assert success_rate(applied, overflow, window=1).tolist() == pytest.approx([1.0, 1.0, 0.0, 1.0])


def test_heat_keeps_the_largest_norm_of_every_column_however_wide_it_grows() -> None:
    heat = NormMatrix(max_columns=16)
    chance = np.random.default_rng(0)
    matrix = chance.random((1000, 3)).astype(np.float32)
    matrix[777, 1] = 50.0
    for start in range(0, 1000, 90):
        heat.add(np.arange(start, min(start + 90, 1000)), matrix[start : start + 90], ("a", "b", "c"))
    names, steps, table = heat.table()
    assert names == ["a", "b", "c"]
    assert len(steps) <= 16
    for place, first in enumerate(steps):
        assert table[:, place].tolist() == matrix[first : first + heat.width].max(axis=0).tolist()


def test_heat_never_loses_a_value_that_is_not_finite() -> None:
    heat = NormMatrix(max_columns=4)
    matrix = np.ones((64, 2), dtype=np.float32)
    matrix[10, 0], matrix[40, 1] = math.nan, math.inf
    heat.add(np.arange(64), matrix, ("a", "b"))
    heat.add(np.arange(64, 400), np.full((336, 2), 9.0, dtype=np.float32), ("a", "b"))
    _, steps, table = heat.table()
    assert np.isnan(table[0, np.searchsorted(steps, 10, side="right") - 1])
    assert np.isinf(table[1, np.searchsorted(steps, 40, side="right") - 1])


def test_heat_follows_tensors_that_come_later() -> None:
    heat = NormMatrix()
    heat.add(np.array([0]), np.array([[1.0]], dtype=np.float32), ("a",))
    heat.add(np.array([1]), np.array([[2.0, 3.0]], dtype=np.float32), ("b", "a"))
    names, steps, table = heat.table()
    assert (names, steps.tolist(), table.tolist()) == (["a", "b"], [0, 1], [[1.0, 3.0], [-1.0, 2.0]])


def test_rows_are_merged_by_the_beginning_of_their_names() -> None:
    names = [f"layers.{layer}.{part}.weight" for layer in range(3) for part in ("q", "k")]
    matrix = np.arange(6, dtype=np.float32).reshape(6, 1)
    merged, rows = grouped(names, matrix, limit=3)
    assert (merged, rows.tolist()) == (["layers.0", "layers.1", "layers.2"], [[1.0], [3.0], [5.0]])
    assert grouped(names, matrix, limit=6)[0] == names
