"""The few shapes a picture of a run is made of, and the numbers beside an axis. No drawing library is needed here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through these points; `dash` is the length of its dashes, 0 for none."""

    points: Sequence[Point]
    colour: str
    width: float = 1.0
    dash: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """What is inside of these points, filled."""

    points: Sequence[Point]
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotText:
    """A text whose baseline begins, is centred or ends at a point."""

    x: float
    y: float
    text: str
    colour: str
    size: float = 13.0
    anchor: str = "start"
    """start, middle or end"""


Shape = Line | Area | PlotText


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Numbers from `low` to `high` onto pixels from `start` to `end`, by their logarithms where `log`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; values outside are put on the edge."""
        low, high, value = (math.log10(x) for x in (self.low, self.high, max(value, 1e-300))) if self.log else (
            self.low, self.high, value,
        )  # fmt: skip
        share = (value - low) / (high - low)
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        """Round numbers inside of the scale, neither too many nor too few."""
        return _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high)


def scale_for(values: Sequence[float], start: float, end: float, *, log: bool) -> AxisScale:
    """A scale with a little space around these finite values."""
    low, high = (min(values), max(values)) if values else (1.0, 10.0)
    if log:
        # A step of at least a factor of 1.6, or a flat curve would fill the picture with its noise.
        middle, half = (
            math.sqrt(low) * math.sqrt(high),
            max(math.sqrt(high / low), 1.6) if high / low < 1e300 else 1e150,
        )
        low, high = middle / half, middle * half
        room = (high / low) ** 0.06 if high / low < 1e300 else 1.0
        return AxisScale(low / room, high * room, start, end, log=True)
    spread = (high - low) or abs(high) or 1.0
    return AxisScale(low - 0.06 * spread, high + 0.06 * spread, start, end)


def _ticks(low: float, high: float, *, about: int = 7) -> list[float]:
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, (last - first) // 7)
    for factors in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        powers = range(first, last + 1, every)
        found = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if len(found) >= 3 or every > 1:
            return found
    return found


def short(value: float) -> str:
    """A number beside an axis: 0.02, 1.5, 20, 1,000, 2e-06."""
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 10 else f"{value:.4g}"
