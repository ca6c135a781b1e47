"""When a growing number reaches a limit is said where its growth can be extrapolated, and not elsewhere."""

from __future__ import annotations

import math
import random

import pytest

from steadygrad.detect.sampled.growth import time_until

STEPS = (10, 30, 100, 200, 400, 600, 800)


@pytest.mark.parametrize(
    ("curve", "crosses_at"),
    [
        (lambda step: 10 * math.exp(step / 200), 200 * math.log(100)),
        (lambda step: 0.5 * step, 2000),
        (lambda step: step**2 / 1500, math.sqrt(1_500_000)),
    ],
    ids=["by a factor", "by an amount", "by a power"],
)
def test_the_crossing_lies_in_the_interval(curve, crosses_at: float) -> None:
    samples = [(step, curve(step)) for step in STEPS]
    found = time_until(samples, 1000.0)
    assert found is not None
    assert found.earliest <= crosses_at - 800 <= found.latest
    assert abs(found.about - (crosses_at - 800)) <= 0.1 * crosses_at


@pytest.mark.parametrize(
    "curve",
    [
        lambda step: 900 * (1 - math.exp(-step / 150)),
        lambda step: 100.0,
        lambda step: 100 * (1 + 0.0004 * step),
        lambda step: 300 + 200 * math.sin(step / 60),
        lambda step: 1000 / step,
        lambda step: 5 * math.sqrt(step),
    ],
    ids=["saturates", "constant", "grows little", "swings", "falls", "far away"],
)
def test_nothing_is_said_where_growth_ends_or_the_limit_is_far(curve) -> None:
    assert time_until([(step, curve(step)) for step in STEPS], 1000.0) is None


def test_noise_is_not_extrapolated() -> None:
    draw = random.Random(0)
    said = [
        time_until([(step, draw.lognormvariate(3.0, 0.7)) for step in STEPS], 1000.0) is not None for _ in range(2000)
    ]
    assert sum(said) == 0


def test_a_few_samples_or_values_past_the_limit_say_nothing() -> None:
    samples = [(step, 10 * math.exp(step / 200)) for step in STEPS]
    assert time_until(samples[:3], 1000.0) is None
    assert time_until(samples, 100.0) is None
