"""When a loop that is not ours gets its next snapshot: now and then, so seldom that copying costs next to nothing."""

from __future__ import annotations

import time

from ...engine.state.snapshot_ring import SnapshotRing
from ...engine.state.training_state import Tree

_SHARE = 0.001
"""Of the time, at most so much goes into copies that a device makes."""


class SnapshotSchedule:
    """Asked before each forward. Host work only: a comparison on most steps."""

    def __init__(self, ring: SnapshotRing, every: int) -> None:
        self._ring = ring
        self._every = every
        self._last = -every
        self._time = 0.0

    def due(self, step: int) -> bool:
        """At once if there is none, then once in each stretch of `every` steps."""
        return self._ring.last_step < 0 or step // self._every > self._last // self._every

    def cheap(self) -> bool:
        """Whether the last copy cost little enough beside what has been done since. Never waits for one."""
        return self._ring.last_step < 0 or self._ring.seconds <= _SHARE * (time.monotonic() - self._time)

    def take(self, step: int, earlier: Tree | None = None) -> None:
        self._ring.take(step, earlier)
        self._last, self._time = step, time.monotonic()
