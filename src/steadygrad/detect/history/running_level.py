"""The level of one number over the last steps: its median, its spread, its highest, and what was refused.

Median and median absolute deviation are read from a sorted window in O(log n); half of the window may be nonsense
before either moves far. Values that were refused do not enter, but they are remembered for as long as the window: so
many in a row, or too large a share of the steps, are no spikes but their own level.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from statistics import median
from typing import Any

from ...policy import Policy

WINDOW = 128
_GAUSSIAN = 1.4826  # the median absolute deviation of a normal distribution is its sigma / 1.4826


class RunningLevel:
    """A window of accepted values and a memory of refused ones. All values must be finite."""

    __slots__ = ("_in_order", "_refused", "_tick", "ordered", "refused_in_a_row")

    def __init__(self) -> None:
        self._in_order: deque[float] = deque()
        self.ordered: list[float] = []
        """The accepted values, smallest first."""
        self._refused: deque[tuple[int, float]] = deque()
        self._tick = 0
        self.refused_in_a_row = 0

    def __len__(self) -> int:
        return len(self._in_order)

    def admit(self, value: float) -> None:
        """An accepted value."""
        if self._refused:
            self._advance()
        else:
            self._tick += 1
        self.refused_in_a_row = 0
        if len(self._in_order) == WINDOW:
            del self.ordered[bisect_left(self.ordered, self._in_order.popleft())]
        self._in_order.append(value)
        insort(self.ordered, value)

    def refuse(self, value: float) -> None:
        """A finite value that was refused as a spike."""
        self._advance()
        self.refused_in_a_row += 1
        self._refused.append((self._tick, value))

    def _advance(self) -> None:
        self._tick += 1
        while self._refused and self._tick - self._refused[0][0] > WINDOW:
            self._refused.popleft()

    def median(self) -> float:
        """The middle of the window; the mean of the two middle values where their number is even."""
        values, half = self.ordered, len(self.ordered) // 2
        return values[half] if len(values) % 2 else 0.5 * (values[half - 1] + values[half])

    def highest(self) -> float:
        """The largest value in the window."""
        return self.ordered[-1]

    def lowest(self) -> float:
        """The smallest value in the window."""
        return self.ordered[0]

    def spread(self) -> float:
        """A robust standard deviation: the distance within which half of the window lies around its median, scaled.

        The half nearest to the median is a contiguous run of the sorted window; a binary search finds where it starts.
        """
        values, middle = self.ordered, self.median()
        need = len(values) // 2 + 1
        low, high = 0, len(values) - need
        while low < high:
            start = (low + high) // 2
            if middle - values[start] > values[start + need] - middle:
                low = start + 1
            else:
                high = start
        return _GAUSSIAN * max(middle - values[low], values[low + need - 1] - middle)

    def accepted(self, policy: Policy) -> float | None:
        """The level of the refused values once they are too many to be spikes, else None."""
        if not self._refused:
            return None
        if self.refused_in_a_row >= policy.spike_patience:
            return median(value for _, value in list(self._refused)[-self.refused_in_a_row :])
        if len(self._refused) > policy.spike_tail_share * WINDOW:
            return median(value for _, value in self._refused)
        return None

    def to_plain(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {
            "values": list(self._in_order),
            "refused": [list(pair) for pair in self._refused],
            "tick": self._tick,
            "refused_in_a_row": self.refused_in_a_row,
        }

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> RunningLevel:
        """The level `to_plain` made this from."""
        level = cls()
        level._in_order.extend(float(value) for value in data["values"])
        level.ordered = sorted(level._in_order)
        level._refused.extend((int(tick), float(value)) for tick, value in data["refused"])
        level._tick, level.refused_in_a_row = int(data["tick"]), int(data["refused_in_a_row"])
        return level
