"""How much of a process's time may go into looks that a healthy step can do without.

The first trainings of a process are looked at in full. A program with hundreds of short ones, a search over settings or
a test suite, would spend most of its time on that: from then on there is a look only while all looks together took a
small share of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class LookBudget:
    """Asked with `admits` before each look; `with budget:` around what is a part of one."""

    def __init__(self, always: int, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        """The first `always` looks are free; later ones may take this share of the time."""
        self._always, self._share, self._clock = always, share, clock
        self._began = clock()
        self._entered: list[float] = []
        self.made = self.left_out = 0
        self.seconds = 0.0

    def admits(self) -> bool:
        """Whether there may be another look."""
        return self.made < self._always or self.seconds <= self._share * (self._clock() - self._began)

    def begin(self) -> bool:
        """The same, and count it."""
        admitted = self.admits()
        self.made += admitted
        self.left_out += not admitted
        return admitted

    def __enter__(self) -> None:
        self._entered.append(self._clock())

    def __exit__(self, *_: object) -> None:
        began = self._entered.pop()
        if not self._entered:
            self.seconds += self._clock() - began
