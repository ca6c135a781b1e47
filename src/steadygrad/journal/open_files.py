"""What an open journal holds: its directory, its thread, its step writer and its line files."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..records import Incident, to_plain
from . import program_end, safe_files
from .checksummed_lines import LineFile
from .events import encode_event
from .incident_files import encode_incident, put_incident
from .journal_health import Degraded, JournalHealth, log
from .run_directory import RunDirectory
from .steps.step_writer import StepWriter, warm_up
from .writer_thread import WriterThread

STATE_VERSION = 1
SizedJob = tuple[Callable[[], None], int]
"""Something to do on the journal's thread, and how many bytes it keeps in memory until then."""


class OpenFiles:
    """What a journal holds open. Apart from the Journal so that its finalizer does not keep the Journal alive."""

    def __init__(self, run: RunDirectory, *, health: JournalHealth, flush_every: float, **step_options: Any) -> None:
        self.run = run
        self.health = health
        self.steps = StepWriter(run, health=health, wake=lambda: self.worker.wake(), **step_options)
        self.worker = WriterThread(health=health, drain=self.steps.drain, interval=flush_every)
        self.worker.post("warm-up", None, warm_up)
        self._lines: dict[str, LineFile] = {}
        self._numbers = itertools.count()
        self._process = os.getpid()
        self.told_end = False
        health.on_recovered = self._note_period

    def number(self) -> int:
        return next(self._numbers)

    def line(self, stem: str, line: bytes) -> SizedJob:
        """A job that appends to events.jsonl or quarantine.jsonl."""
        if stem not in self._lines:
            self._lines[stem] = LineFile(self.run.own(stem, ".jsonl"))
        file = self._lines[stem]
        return (lambda: file.append(line)), len(line)

    def incident(self, incident: Incident) -> SizedJob:
        """A job that puts an incident, or its new version, in place."""
        data = encode_incident(incident)

        def job() -> None:
            put_incident(self.run, incident.number, data)

        return job, len(data)

    def state(self, state: Mapping[str, Any]) -> SizedJob:
        """A job that puts the state in place."""
        data = safe_files.json_bytes({"version": STATE_VERSION, "state": to_plain(state)})
        return (lambda: safe_files.replace_file(self.run.own("state", ".json"), data)), len(data)

    def shut_unclosed(self) -> None:
        """It was never closed: Python exits, or the program has dropped its guard and goes on."""
        if self._process != os.getpid():
            return
        told = program_end.exiting_with()
        if told and not self.told_end and (program_end.exiting() or told["how"] != "exit"):
            job, size = self.line("events", encode_event(program_end.ENDED, told, rank=self.run.rank))
            self.worker.post("events", self.number(), job, size=size)
        elif not self.told_end:
            program_end.tell_at_exit(self.run.path, self.run.rank)
        self.shut()

    def shut(self) -> None:
        """Closes everything within seconds, whatever the disk does."""
        if self._process != os.getpid():
            return  # a forked child: all this is its parent's
        self.worker.flush(5.0)
        if self.health.degraded is not None:
            self._note_period(self.health.period())
        self.worker.stop(5.0)
        if not self.worker.alive:
            self.steps.close()
        if lost := self.worker.waiting + self.steps.waiting:
            self.health.drop(lost)
        if self.health.dropped:
            log.warning("The journal of %s is closed; %d records are missing.", self.run.path, self.health.dropped)
        for file in self._lines.values():
            file.close()
        with contextlib.suppress(OSError):
            self.run.close()

    def _note_period(self, period: Degraded) -> None:
        job, size = self.line("events", encode_event("journal_degraded", to_plain(period), rank=self.run.rank))
        self.worker.post("events", self.number(), job, size=size)
