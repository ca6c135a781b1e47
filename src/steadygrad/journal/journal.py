"""Journal: what a run remembers, behind one door that never blocks or stops training."""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import JournalError
from ..records import Incident, StepRecord, to_plain
from . import files
from .events import encode_event, encode_quarantined, quarantined
from .health import Health, log
from .incidents import encode_incident, write_incident
from .lines import LineFile
from .run_directory import RunDirectory
from .steps import StepWriter
from .worker import Worker

STATE_VERSION = 1
_WAIT_S = 0.5  # how long a disk may take to acknowledge an event before the journal counts as degraded


class Journal:
    """Writes one rank's part of a run directory. With `run_dir=None` nothing is kept on disk, only counted.

    Opening raises JournalError if the directory cannot be written. After that no call raises for the disk's sake or
    waits longer than half a second: `degraded` says in words what is wrong, `dropped` counts what was lost, and
    `on_degraded(reason)` is called once a period, from either thread.

    `event`, `quarantine`, `incident` and `write_state` return True once the disk has what they were given (fsync);
    steps are written about once a second, and `flush` returns True when all of them are written.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None,
        *,
        names: Sequence[str] = (),
        run_config: Mapping[str, Any] | None = None,
        rank: int = 0,
        norms_every: int = 10,
        flush_every: float = 1.0,
        max_queue: int = 4096,
        segment_bytes: int = 32 << 20,
        merge_after: int = 256,
        on_degraded: Callable[[str], None] | None = None,
    ) -> None:
        self.rank = rank
        self.num_steps = self.num_events = self.num_incidents = self.num_quarantined = 0
        self._health = Health(on_degraded)
        self._open: _Open | None = None
        self._last_incident = 0
        self._closed = False
        if run_dir is None:
            self.run_id = "unkept"
            return
        run = RunDirectory(run_dir, rank=rank, run_config=run_config)
        self.run_id = run.run_id
        self._last_incident = run.last_incident()
        opened = _Open(run, self._health, flush_every)
        opened.steps = StepWriter(
            run,
            names=names,
            health=self._health,
            norms_every=norms_every,
            max_queue=max_queue,
            segment_bytes=segment_bytes,
            merge_after=merge_after,
            wake=opened.worker.wake,
        )
        opened.worker.drain = opened.steps.drain
        self._open = opened
        # Runs at exit, after Ctrl-C, or when the journal is forgotten; holds the parts and not the journal itself.
        self._finalizer = weakref.finalize(self, opened.shut)

    @property
    def directory(self) -> RunDirectory | None:
        """Where everything of this run is, or None if nothing is kept."""
        return self._open.run if self._open else None

    @property
    def path(self) -> Path | None:
        return self._open.run.path if self._open else None

    @property
    def continued(self) -> bool:
        """Whether the directory already held a run, which this one goes on with."""
        return self._open is not None and self._open.run.continued

    @property
    def degraded(self) -> str | None:
        """Why not everything is being kept at present, or None."""
        return self._health.degraded

    @property
    def dropped(self) -> int:
        """How many records could not be kept so far."""
        return self._health.dropped

    def step(self, record: StepRecord) -> None:
        """Queues one step. Microseconds on the host; no sync with a device, no disk, never raises."""
        self.num_steps += 1
        if self._open is not None and not self._closed:
            self._open.steps.put(record)

    def set_names(self, names: Sequence[str]) -> None:
        """From now on `norms` speaks of these tensors."""
        kept = tuple(names)
        if self._open is not None and not self._closed:
            steps = self._open.steps
            self._open.worker.flush(_WAIT_S)
            self._open.worker.post("steps", "names", lambda: steps.set_names(kept), wait=_WAIT_S)

    def next_incident(self) -> int:
        """A number no incident of this run has had."""
        self._last_incident += 1
        return self._last_incident

    def incident_directory(self, number: int) -> Path | None:
        """Where the files of an incident belong, made if it is not there; None if nothing is kept. Raises JournalError
        if the disk refuses."""
        if self._open is None:
            return None
        try:
            return self._open.run.incident_directory(number)
        except OSError as error:
            raise JournalError(f"Incident {number} cannot be kept: {files.why(error)}.") from error

    def incident(self, incident: Incident) -> bool:
        """Keeps an incident, or its new version in place of the old. True once it is on disk."""
        self._last_incident = max(self._last_incident, incident.number)
        self.num_incidents += 1
        return self._post("incidents", incident.number, lambda opened: _incident_job(opened, incident))

    def event(self, kind: str, /, **data: Any) -> bool:
        """Keeps one event. True once it is on disk."""
        self.num_events += 1
        return self._post(
            "events", None, lambda opened: opened.line("events", encode_event(kind, data, rank=self.rank))
        )

    def quarantine(
        self,
        batch_key: str,
        *,
        step: int,
        cause: str = "",
        rows: Sequence[int] | None = None,
        sample_ids: Sequence[object] = (),
    ) -> bool:
        """Keeps which batch, and which rows of it, were refused. True once it is on disk."""
        self.num_quarantined += 1

        def job(opened: _Open) -> Callable[[], None]:
            entry = quarantined(batch_key, step=step, cause=cause, rows=rows, sample_ids=sample_ids, rank=self.rank)
            return opened.line("quarantine", encode_quarantined(entry))

        return self._post("quarantine", None, job)

    def write_state(self, state: Mapping[str, Any]) -> bool:
        """Puts what is needed to resume in place of what was there, whole or not at all. True once it is on disk."""
        return self._post("state", "state", lambda opened: opened.state(state))

    def read_state(self) -> dict[str, Any] | None:
        """What `write_state` last kept, as plain data (a non-finite number is a string); None if there is none."""
        if self._open is None:
            return None
        path = self._open.run.own("state", ".json")
        if not path.exists():
            return None
        kept = files.read_json(path)
        version, state = kept.get("version"), kept.get("state")
        if not isinstance(version, int) or version > STATE_VERSION or not isinstance(state, dict):
            raise JournalError(
                f"{path} is not a state this steadygrad can resume from: upgrade it, or move the file away."
            )
        return state

    def flush(self, timeout: float = 5.0) -> bool:
        """Waits at most `timeout` seconds until everything handed over before is written; False if it was not."""
        if self._open is None:
            return True
        return not self._closed and self._open.worker.flush(timeout)

    def close(self) -> None:
        """Writes what is left and lets go of the directory. Calling it again does nothing."""
        self._closed = True
        if self._open is not None:
            self._finalizer()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _post(self, part: str, key: object, job: Callable[[_Open], Callable[[], None]]) -> bool:
        """Encodes on this thread, so that the caller may change its data afterwards, and writes on the other."""
        if self._open is None or self._closed:
            return False
        try:
            made = job(self._open)
        except Exception as error:
            log.exception("something could not be written down and is left out of the journal")
            self._health.drop()
            self._health.fail(part, f"{part} could not be encoded: {files.why(error)}")
            return False
        return self._open.worker.post(part, self._open.number() if key is None else key, made, wait=_WAIT_S)


class _Open:
    """What a journal holds open. Apart from the Journal so that its finalizer does not keep the Journal alive."""

    def __init__(self, run: RunDirectory, health: Health, interval: float) -> None:
        self.run = run
        self.health = health
        self.worker = Worker(health=health, interval=interval)
        self.steps: StepWriter
        self._lines: dict[str, LineFile] = {}
        self._numbers = itertools.count()
        self._process = os.getpid()

    def number(self) -> int:
        return next(self._numbers)

    def line(self, stem: str, line: bytes) -> Callable[[], None]:
        """A job that appends to events.jsonl or quarantine.jsonl."""
        if stem not in self._lines:
            self._lines[stem] = LineFile(self.run.own(stem, ".jsonl"))
        file = self._lines[stem]
        return lambda: file.append(line)

    def state(self, state: Mapping[str, Any]) -> Callable[[], None]:
        data = files.json_bytes({"version": STATE_VERSION, "state": to_plain(state)})
        return lambda: files.replace_file(self.run.own("state", ".json"), data)

    def shut(self) -> None:
        """Closes everything within seconds, whatever the disk does."""
        if self._process != os.getpid():
            return  # a forked child: all this is its parent's
        self.worker.flush(5.0)
        self.worker.stop(5.0)
        if not self.worker.alive:
            self.steps.close()
        for file in self._lines.values():
            file.close()
        with contextlib.suppress(OSError):
            self.run.close()


def _incident_job(opened: _Open, incident: Incident) -> Callable[[], None]:
    encode_incident(incident)  # what cannot be encoded is found out here, not on the other thread again and again

    def job() -> None:
        write_incident(opened.run, incident)

    return job
