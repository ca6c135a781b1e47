"""Whether the journal is keeping up, logged once when it stops and once when it goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("steadygrad.journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Degraded:
    """A stretch in which the journal could not keep everything."""

    reason: str
    since: float
    until: float
    dropped: int


class JournalHealth:
    """The state of a journal's parts. Parts fail and recover by name; the journal is degraded while any of them is."""

    def __init__(self, on_degraded: Callable[[str], None] | None = None) -> None:
        self.dropped = 0
        self.on_recovered: Callable[[Degraded], None] = lambda period: None
        self._on_degraded = on_degraded
        self._failing: dict[str, str] = {}
        self._since = 0.0
        self._dropped_before = 0
        self._first_reason = ""
        self._untold_until: float | None = None
        self._lock = threading.RLock()

    @property
    def degraded(self) -> str | None:
        """Why the journal is not keeping everything at present, or None."""
        return next(iter(list(self._failing.values())), None)

    def fail(self, part: str, reason: str, *, patience: float = 0.0) -> None:
        """Notes that a part cannot write. Calls `on_degraded` once a period, on the thread that noticed first.

        With `patience` nothing is said until so many seconds have passed or something had to be dropped: a disk that
        takes its time now and then is no news.
        """
        if self._failing.get(part) == reason:
            self.tell_if_overdue()
            return
        with self._lock:
            first = not self._failing
            self._failing[part] = reason
            if first:
                self._since, self._dropped_before, self._first_reason = time.time(), self.dropped, reason
                self._untold_until = time.monotonic() + patience
            elif patience <= 0:
                self._untold_until = 0.0 if self._untold_until is not None else None
        self.tell_if_overdue()

    def tell_if_overdue(self) -> None:
        """Says aloud that the journal is degraded, once a period, if it is time to."""
        with self._lock:
            reason = self.degraded
            lost = self.dropped > self._dropped_before
            due = self._untold_until is not None and (lost or time.monotonic() >= self._untold_until)
            if reason is None or not due:
                return
            self._untold_until = None
        log.warning("The journal is degraded: %s. Training goes on; what cannot be kept is counted.", reason)
        if self._on_degraded is not None:
            try:
                self._on_degraded(reason)
            except Exception:
                log.exception("on_degraded raised; training goes on")

    def failing(self) -> set[str]:
        """The parts that cannot write at present."""
        with self._lock:
            return set(self._failing)

    def recover(self, part: str) -> None:
        """Notes that a part writes again."""
        if part not in self._failing:
            return
        with self._lock:
            self._failing.pop(part, None)
            if self._failing:
                return
            period = self.period()
            told, self._untold_until = self._untold_until is None, None
        if not told and not period.dropped:
            return
        seconds = period.until - period.since
        log.warning("The journal writes again after %.1f s; %d records were dropped.", seconds, period.dropped)
        self.on_recovered(period)

    def period(self) -> Degraded:
        """The degraded stretch so far."""
        dropped = self.dropped - self._dropped_before
        return Degraded(reason=self._first_reason, since=self._since, until=time.time(), dropped=dropped)

    def drop(self, count: int = 1) -> None:
        """Counts records that are lost. Call `fail` first: what is dropped counts for the period it starts."""
        with self._lock:
            self.dropped += count
