"""When a growing number reaches a limit, with an interval; None where its growth cannot be extrapolated.

Three curves are fitted to the samples: a constant amount per update, a constant factor per update, and a power of the
number of updates. Where growth slows down against a curve, that curve says nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

MIN_SAMPLES = 4
_MIN_GROWTH = 2.0
_MIN_FIT = 0.97
_DIP = 0.9
"""What a sample may be below the one before: batches differ."""
_SLOWER = 0.7
"""The last stretch must have grown at this share of the mean pace at least."""
_REACH = 2.0
"""How far is extrapolated, in lengths of what was observed."""

Sample = tuple[int, float]


class Crossing(NamedTuple):
    """Updates from the last sample until the limit: the best guess, and the earliest and latest that is likely."""

    about: int
    earliest: int
    latest: int


def time_until(samples: Sequence[Sample], limit: float) -> Crossing | None:
    """When samples of (update, value) reach the limit. Pure."""
    if len(samples) < MIN_SAMPLES or any(not 0 < value < limit for _, value in samples):
        return None
    (first, at_first), (last, at_last) = samples[0], samples[-1]
    steady = all(after >= _DIP * before for (_, before), (_, after) in itertools.pairwise(samples))
    if not steady or at_last < _MIN_GROWTH * at_first or not 0 < first < last:
        return None
    logs, top = [(step, math.log(value)) for step, value in samples], math.log(limit)
    power = _line([(math.log(step), value) for step, value in logs], top)
    curves = [_line(samples, limit), _line(logs, top)]
    if power is not None:
        curves.append((power[0], last * (math.exp(power[1]) - 1)))
    found = [curve for curve in curves if curve is not None]
    if not found:
        return None
    about, times = max(found)[1], [remaining for _, remaining in found]
    if about > _REACH * (last - first):
        return None
    # Samples are noisy: a quarter on either side, and what the other curves say.
    return Crossing(round(about), round(0.75 * min(times)), round(1.25 * max(times)))


def _line(samples: Sequence[tuple[float, float]], limit: float) -> tuple[float, float] | None:
    """How well a line fits the samples, and how far after the last it reaches the limit; None where none fits."""
    count = len(samples)
    middle_step, middle = sum(s for s, _ in samples) / count, sum(v for _, v in samples) / count
    across = sum((s - middle_step) ** 2 for s, _ in samples)
    slope = sum((s - middle_step) * (v - middle) for s, v in samples) / across
    around = sum((v - middle) ** 2 for _, v in samples)
    left = sum((v - middle - slope * (s - middle_step)) ** 2 for s, v in samples)
    fit = 1 - left / around if around > 0 else 0.0
    (before, value_before), (last, value) = samples[-2:]
    if slope <= 0 or fit < _MIN_FIT or (value - value_before) < _SLOWER * slope * (last - before):
        return None
    return fit, (limit - value) / slope
