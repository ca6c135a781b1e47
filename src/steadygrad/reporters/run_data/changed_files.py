"""Incidents and events of a run, read again only when their files have changed: a live view asks every second."""

from __future__ import annotations

import os
from pathlib import Path

from ...journal import Event, read_events, safe_files
from ...journal.incident_files import read_incident
from ...journal.run_directory import incident_name, incident_numbers, open_run, rank_files
from ...records import Incident
from ...records.errors import JournalError

Identity = tuple[int, int, int]


class ChangedFiles:
    """What stands beside the steps. What is damaged costs only itself; `faults` has a sentence for each."""

    def __init__(self, run_dir: Path) -> None:
        self.faults: list[str] = []
        self._run_dir = run_dir
        self._incidents: dict[int, tuple[Identity, Incident]] = {}
        self._events: tuple[list[Identity], list[Event]] = ([], [])

    def look(self) -> tuple[list[Incident], list[Event]]:
        """The incidents in the order of their numbers, and the events in the order of their times."""
        self.faults = []
        return self._read_incidents(), self._read_events()

    def _read_incidents(self) -> list[Incident]:
        try:
            root = open_run(self._run_dir)
            numbers = incident_numbers(root)
        except JournalError as error:
            self.faults.append(str(error))
            return []
        found = []
        for number in numbers:
            kept = self._incident(root, number)
            if isinstance(kept, Incident):
                found.append(kept)
            elif kept is not None:
                self.faults.append(kept)
        return found

    def _incident(self, root: Path, number: int) -> Incident | str | None:
        try:
            path = safe_files.inside(root, "incidents", incident_name(number), "incident.json")
            identity = identity_of(path)
            if identity is None:  # its directory is made before the file is finished
                return None
            kept = self._incidents.get(number)
            if kept is None or kept[0] != identity:
                kept = self._incidents[number] = identity, read_incident(path)
        except JournalError as error:
            return str(error)
        return kept[1]

    def _read_events(self) -> list[Event]:
        try:
            identities = [identity_of(path) or (0, 0, 0) for path in rank_files(self._run_dir, "events", ".jsonl")]
            if identities != self._events[0]:
                self._events = identities, read_events(self._run_dir)
        except JournalError as error:
            self.faults.append(str(error))
            return []
        return self._events[1]


def identity_of(path: Path) -> Identity | None:
    """What changes whenever a file does; None if it is not there."""
    try:
        about = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
