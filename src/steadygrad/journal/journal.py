"""Journal: what a run remembers, behind one interface that never blocks or stops training."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ..records import Incident, StepRecord
from ..records.errors import JournalError
from . import program_end, safe_files
from .events import encode_event, encode_quarantined, quarantined
from .journal_health import JournalHealth, log
from .open_files import STATE_VERSION, OpenFiles, SizedJob
from .run_directory import RunDirectory

_WAIT_S = 0.5  # how long a disk may take to acknowledge an event before the journal counts as degraded


class Journal:
    """Writes one rank's part of a run directory. With `run_dir=None` nothing is kept on disk, only counted.

    Opening raises JournalError if the directory cannot be written. After that no call raises for the disk's sake or
    waits longer than half a second: `degraded` says in words what is wrong, `dropped` counts what was lost, and
    `on_degraded(reason)` is called once a period, from either thread.

    `event`, `quarantine`, `incident` and `write_state` return True once the disk has what they were given (fsync);
    steps are written about once a second, and `flush` returns True when all of them are written.

    `resumes`: the program goes on with what the directory holds. Else it is said where another program wrote there.
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
        segment_bytes: int = 8 << 20,
        merge_after: int = 256,
        on_degraded: Callable[[str], None] | None = None,
        resumes: bool = False,
    ) -> None:
        self.rank = rank
        self.num_steps = self.num_events = self.num_quarantined = 0
        self._incidents: set[int] = set()
        self._health = JournalHealth(on_degraded)
        self._open: OpenFiles | None = None
        self._last_incident = 0
        self._closed = False
        self._shut: Callable[[], Any] | None = None
        if run_dir is None:
            self.run_id = "unkept"
            return
        run = RunDirectory(run_dir, rank=rank, run_config=run_config)
        self.run_id = run.run_id
        try:
            self._last_incident = run.last_incident()
            self._open = opened = OpenFiles(
                run,
                health=self._health,
                flush_every=flush_every,
                names=names,
                norms_every=norms_every,
                max_queue=max_queue,
                segment_bytes=segment_bytes,
                merge_after=merge_after,
            )
        except BaseException:
            run.close()
            raise
        # Runs at exit, after Ctrl-C, or when the journal is forgotten; holds the parts and not the journal itself.
        self._finalizer = weakref.finalize(self, opened.shut_unclosed)
        self._shut = self._finalizer
        self._handled_before = id(program_end.under_way())
        program_end.begins_anew(run.path, rank)
        if run.of_another and not resumes:
            log.warning(
                "%s already holds the run of another program. This one is written beside it, and reports show the "
                "newest; pass another run_dir to keep them apart.", run.path,
            )  # fmt: skip
        _stand_down_in_forked_children(self)

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
    def num_incidents(self) -> int:
        return len(self._incidents)

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
        if self._open is not None and not self._closed:
            self._open.steps.set_names(names)

    @property
    def last_incident(self) -> int:
        """The highest number an incident of this run has had, 0 for none."""
        return self._last_incident

    def number_incidents_from(self, last: int) -> None:
        """The next incident comes after this one too: all ranks of a run give one incident one number."""
        self._last_incident = max(self._last_incident, last)

    def next_incident(self) -> int:
        """A number no incident of this run has had."""
        self._last_incident += 1
        return self._last_incident

    def incident_directory(self, number: int) -> Path | None:
        """Where this rank's files of an incident belong, made if it is not there: incidents/NNNN, or its rank1 and so
        on. None if nothing is kept. Raises JournalError if the disk refuses."""
        if self._open is None:
            return None
        try:
            folder = self._open.run.incident_directory(number)
            return safe_files.make_directory(safe_files.inside(folder, f"rank{self.rank}")) if self.rank else folder
        except OSError as error:
            raise JournalError(f"Incident {number} cannot be kept: {safe_files.why(error)}.") from error

    def incident(self, incident: Incident) -> bool:
        """Keeps an incident, or its new version in place of the old. True once it is on disk."""
        self._last_incident = max(self._last_incident, incident.number)
        self._incidents.add(incident.number)
        return self._post("incidents", incident.number, lambda opened: opened.incident(incident))

    def event(self, kind: str, /, **data: Any) -> bool:
        """Keeps one event. True once it is on disk."""
        return self._event(kind, data, _WAIT_S)

    def event_later(self, kind: str, /, **data: Any) -> None:
        """Keeps one event, and does not wait for the disk: it may be lost if the process is killed at once."""
        self._event(kind, data, 0.0)

    def _event(self, kind: str, data: dict[str, Any], wait: float) -> bool:
        self.num_events += 1
        return self._post(
            "events", None, lambda opened: opened.line("events", encode_event(kind, data, rank=self.rank)), wait
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

        def job(opened: OpenFiles) -> SizedJob:
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
        kept = safe_files.read_json(path)
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

    def ended(self, error: BaseException | None = None) -> None:
        """Keeps how training ended: by this exception, or as it should. The first answer stands."""
        self.ended_with(program_end.told_of(error))

    def ended_with(self, told: Mapping[str, Any]) -> None:
        """The same, in the words that are written down; no words, no answer."""
        if self._open is not None and not self._closed and not self._open.told_end:
            self._open.told_end = True
            if told:
                self._event(program_end.ENDED, dict(told), 0.0)

    def stay_open_at_exit(self) -> None:
        """Its owner closes it at exit, after Python has run its own finalizers."""
        if self._open is not None and self._finalizer.detach() is not None:
            self._shut = self._open.shut

    def close(self) -> None:
        """Writes what is left, with the exception that is on its way through the code that closes it, and lets go of
        the directory. Calling it again does nothing."""
        if self._shut is not None:
            error = program_end.under_way()
            if error is not None and id(error) != self._handled_before:
                self.ended(error)
                if self._open is not None:  # the program may catch it and go on
                    program_end.tell_at_exit(self._open.run.path, self.rank)
            else:
                self.ended_with(program_end.closed_with())
        self._closed = True
        shut, self._shut = self._shut, None
        if shut is not None:
            shut()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _post(self, part: str, key: object, job: Callable[[OpenFiles], SizedJob], wait: float = _WAIT_S) -> bool:
        """Encodes on this thread, so that the caller may change its data afterwards, and writes on the other."""
        if self._open is None or self._closed:
            return False
        try:
            made, size = job(self._open)
        except Exception as error:
            log.exception("something could not be written down and is left out of the journal")
            self._health.fail(part, f"{part} could not be encoded: {safe_files.why(error)}")
            self._health.drop()
            return False
        key = self._open.number() if key is None else key
        return self._open.worker.post(part, key, made, size=size, wait=wait)


_living: weakref.WeakSet[Journal] | None = None


def _stand_down_in_forked_children(journal: Journal) -> None:
    """A forked child (a data loader's worker) has no journal thread and must not write its parent's files."""
    global _living
    if _living is None:
        _living = weakref.WeakSet()
        os.register_at_fork(after_in_child=_stand_down)
    _living.add(journal)


def _stand_down() -> None:
    for journal in _living or ():
        journal._closed = True
