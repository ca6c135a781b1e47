"""The journal's own thread: everything that may wait for a disk happens here.

Small things that must reach the disk (events, incidents, quarantine, state) are posted as jobs with a key; a later
job with the same key takes the place of one still waiting. A job that fails stays and is tried again, and jobs of the
same kind behind it wait so that order is kept. The number of waiting jobs is bounded; the oldest are dropped.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

from . import safe_files
from .journal_health import JournalHealth, log

Job = Callable[[], None]


class Drain(Protocol):
    """Writes the steps that have gathered; True if none are left waiting."""

    def __call__(self, *, now: bool) -> bool: ...


MAX_WAITING_BYTES = 64 << 20
_PATIENCE_S = 5.0


class Ticket:
    """What someone who posted a job waits for: that it was tried, and whether it is on disk."""

    __slots__ = ("on_disk", "tried")

    def __init__(self) -> None:
        self.tried = threading.Event()
        self.on_disk = False


class WriterThread:
    """Runs posted jobs and drains the step queue about every `interval` seconds, or at once when woken."""

    def __init__(self, *, health: JournalHealth, drain: Drain, interval: float = 1.0, max_jobs: int = 4096) -> None:
        self.health = health
        self._drain = drain
        self._interval = interval
        self._max_jobs = max_jobs
        self._jobs: OrderedDict[tuple[str, Hashable], tuple[Job, Ticket, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.RLock()  # a signal handler may post while its own thread is posting
        self._wake = threading.Event()
        self._passed = threading.Condition()
        self._asked = self._answered = 0
        self._clean = True
        self._stopping = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="steadygrad-journal", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False in a forked child, which has no such thread and must not write its parent's journal."""
        return self._process == os.getpid() and self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """How many jobs are not on disk yet."""
        return len(self._jobs)

    def wake(self) -> None:
        """Asks for a pass now. Does not wait."""
        self._wake.set()

    def post(self, part: str, key: Hashable, job: Job, *, size: int = 0, wait: float = 0.0) -> bool:
        """Queues a job that holds `size` bytes; True if it was on disk within `wait` seconds. While the journal is
        degraded it does not wait, so that a hung disk costs training one wait and not one a job."""
        if not self.alive:
            return False
        ticket = Ticket()
        with self._lock:
            self._remove(part, key)
            while self._jobs and (len(self._jobs) >= self._max_jobs or self._bytes + size > MAX_WAITING_BYTES):
                self._remove(*next(iter(self._jobs)))
                self.health.drop()
            self._jobs[part, key] = (job, ticket, size)
            self._bytes += size
        self._wake.set()
        self.health.tell_if_overdue()
        if wait <= 0 or self.health.degraded is not None or threading.current_thread() is self._thread:
            return ticket.on_disk
        if not ticket.tried.wait(wait):
            # The next pass may find otherwise.
            self.health.fail(part, f"the disk did not answer within {wait:g} s", patience=_PATIENCE_S)
        return ticket.on_disk

    def flush(self, timeout: float) -> bool:
        """Waits until all that was handed over before is on disk; False if it was not within `timeout` seconds."""
        if not self.alive or threading.current_thread() is self._thread:
            return False
        deadline = time.monotonic() + timeout
        with self._passed:
            self._asked += 1
            mine = self._asked
            self._wake.set()
            while self._answered < mine:
                left = deadline - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    return False
                self._passed.wait(min(left, 0.5))
            return self._clean

    def stop(self, timeout: float) -> None:
        """Ends the thread after a last pass, waiting at most `timeout` seconds: a hung disk must not hang the exit."""
        if self._process != os.getpid():
            return
        self._stopping = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(self._interval)
            self._wake.clear()
            with self._passed:
                asked = self._asked
            clean = self._pass(now=asked > self._answered)
            with self._passed:
                self._clean, self._answered = clean, asked
                self._passed.notify_all()
        self._pass(now=True)

    def _pass(self, *, now: bool) -> bool:
        try:
            jobs_done = self._run_jobs()
            return self._drain(now=now) and jobs_done
        except Exception as error:  # our own fault must neither end this thread nor reach training
            log.exception("the journal's thread met an error and goes on")
            self.health.fail("journal", f"an error inside the journal: {safe_files.why(error)}")
            return False

    def _run_jobs(self) -> bool:
        failing: dict[str, str] = {}
        with self._lock:
            waiting = list(self._jobs.items())
        for (part, key), (job, ticket, _) in waiting:
            if part in failing:
                continue
            try:
                job()
            except Exception as error:
                failing[part] = safe_files.why(error)
                self.health.fail(part, f"{part} cannot be written: {failing[part]}")
                ticket.tried.set()
                continue
            ticket.on_disk = True
            ticket.tried.set()
            with self._lock:
                if (latest := self._jobs.get((part, key))) is not None and latest[1] is ticket:
                    self._remove(part, key)
        for part in self.health.failing() - failing.keys() - {"steps"}:
            self.health.recover(part)
        return not failing

    def _remove(self, part: str, key: Hashable) -> None:
        if (job := self._jobs.pop((part, key), None)) is not None:
            self._bytes -= job[2]
