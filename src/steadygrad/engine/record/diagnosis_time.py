"""How long diagnoses may take: each one, and all of a run together.

A diagnosis stops the training while it works. One takes at most half a minute, or the time of some plain steps where
these are slower; all of them together take a minute and a share of the run's time. Where the limit is reached, the
diagnosis says what it has found and what was not tried.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

from ...records import StepRecord

SECONDS = 30.0
STEPS = 30.0
MOST_SECONDS = 300.0
"""One diagnosis takes at most SECONDS, or the time of so many plain steps where that is longer, up to MOST_SECONDS."""
FREE_SECONDS = 60.0
SHARE = 0.1
"""All diagnoses of a run take at most so many seconds and this share of its time."""
VARIABLE = "STEADYGRAD_DIAGNOSIS_SECONDS"
"""The environment variable with the seconds for each diagnosis; then there is no limit for all of them."""


class DiagnosisTime:
    """The time that the diagnoses of one run have taken. Host only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began, self._spent, self._inside = clock(), 0.0, False

    def allowed(self, recent: Sequence[StepRecord]) -> float:
        """Seconds for the next diagnosis, after these steps."""
        chosen = _chosen()
        if chosen is not None:
            return chosen
        one = min(max(SECONDS, STEPS * plain_step(recent)), MOST_SECONDS)
        left = FREE_SECONDS + SHARE * (self._clock() - self._began) - self._spent
        return max(0.0, min(one, left))

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Around a diagnosis."""
        began, outermost, self._inside = self._clock(), not self._inside, True
        try:
            yield
        finally:
            if outermost:
                self._spent += self._clock() - began
                self._inside = False


def plain_step(recent: Sequence[StepRecord]) -> float:
    """The usual seconds from one applied update to the next; 0 where it is not known."""
    found = [after.time - before.time for before, after in pairwise(recent) if before.applied and after.applied]
    return max(0.0, median(found)) if found else 0.0


def _chosen() -> float | None:
    try:
        return max(0.0, float(os.environ[VARIABLE]))
    except (KeyError, ValueError):
        return None
