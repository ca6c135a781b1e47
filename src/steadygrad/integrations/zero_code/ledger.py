"""What one process of a guarded program remembers: its journal, its counts, and what had to be said."""

from __future__ import annotations

import logging
import os
import sys
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine import setup
from ...engine.books import Books
from ...engine.notify import Notifier
from ...engine.shield import Shield
from ...engine.training_state import bad_state
from ...errors import JournalError
from ...journal import Journal
from ...records import Incident
from ..desk import Desk
from .settings import Settings

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from .watch import Watch

logger = logging.getLogger("steadygrad")


class Ledger:
    """Opens the journal when the first update is due, and not before: a program that never trains leaves no trace."""

    def __init__(self, settings: Settings, shield: Shield) -> None:
        self._settings = settings
        self._shield = shield
        self._journal: Journal | None = None
        self._notifier: Notifier | None = None
        self.books: list[Books] = []
        """One for each optimizer that stepped, in order. They hold no tensor: an optimizer is not kept alive."""
        self._optimizers: list[str] = []
        self._desks: list[weakref.ref[Desk]] = []
        self.notices: dict[str, str] = {}
        self.guards: list[Any] = []
        """Guards of a known trainer that look after the program in our stead."""
        self.summaries: list[tuple[str, dict[str, Any]]] = []
        self.in_backward = self.in_backward_refused = 0
        self.crashes: list[str] = []
        self.unguarded = 0

    @property
    def first(self) -> Books | None:
        """Those of the optimizer whose parameters' norms are recorded."""
        return self.books[0] if self.books else None

    @property
    def desks(self) -> list[Desk]:
        """The optimizers that are still there."""
        return [desk for reference in self._desks if (desk := reference()) is not None and desk.alive]

    @property
    def path(self) -> Path | None:
        return self._journal.path if self._journal is not None else None

    def tell(self, kind: str, sentence: str) -> None:
        """Say something about this program once, now and in the end."""
        if kind in self.notices:
            return
        self.notices[kind] = sentence
        logger.warning("%s", sentence)
        if self._journal is not None:
            self._journal.event("notice", kind=kind, sentence=sentence)

    def journal(self, names: list[str], optimizer: Optimizer | None) -> Journal:
        """The journal of this process, made for its first optimizer."""
        if self._journal is None:
            config = setup.run_config(
                self._settings.policy, "the program's own", 1, [optimizer] if optimizer is not None else []
            ) | {"entry_point": "steady run"}
            self._journal = self._open(names, config)
            self._shield.report_to(self._journal.event)
            for kind, sentence in self.notices.items():
                self._journal.event("notice", kind=kind, sentence=sentence)
            self._notifier = Notifier(self._settings.notify or None, run=str(self._journal.path or ""))
        return self._journal

    def _open(self, names: list[str], config: dict[str, Any]) -> Journal:
        rank = rank_of(os.environ)
        wished = self._settings.run_dir
        for place in (wished, f"{wished}-process{os.getpid()}" if wished else None):
            try:
                journal = Journal(place, names=names, run_config=config, rank=rank)
                if self._settings.reports is not None:  # then `close` is called at exit, after a look at the last round
                    journal.stay_open_at_exit()
                return journal
            except JournalError as error:
                self.tell("journal", str(error))
        return Journal(None, names=names, run_config=config, rank=rank)

    def enter(self, desk: Desk, *, first_step: int) -> None:
        """An optimizer stepped for the first time."""
        self.books.append(desk.books)
        self._desks = [reference for reference in self._desks if reference() is not None] + [weakref.ref(desk)]
        name = type(desk.optimizer).__name__
        self._optimizers.append(name)
        desk.books.on_incident = self._notifier
        self.event("training_begins", training=len(self.books), first_step=first_step, optimizer=name)

    def renamed(self, desk: Desk) -> None:
        """Parameters were added to an optimizer."""
        if self._journal is not None and desk.books is self.first:
            self._journal.set_names(desk.names)

    def event(self, kind: str, **data: Any) -> None:
        if self._journal is not None:
            self._journal.event(kind, **data)

    @property
    def num_incidents(self) -> int:
        """How many incidents all trainings of this process have had."""
        return sum(len(books.incidents) for books in self.books)

    def note_unguarded(self, backward: int | None) -> None:
        """An incident for a bad loss of a program whose updates could not be refused: no torch optimizer made them."""
        if backward is None or self.books or self.in_backward or self.guards or self.summaries:
            return
        journal = self.journal([], None)
        why = "and the update after it was not checked: no torch.optim.Optimizer made it"
        journal.incident(
            Incident(
                number=journal.next_incident(), first_step=backward - 1, last_step=backward - 1, symptom="nan_loss",
                headline=f"the loss of backward number {backward} is not finite, {why}", time=time.time(),
            )
        )  # fmt: skip
        self.unguarded = 1

    def close(self, watch: Watch) -> dict[str, Any]:
        """Close the journal; what this process tells the supervisor."""
        for guard in list(self.guards):
            self.guard_done(guard)
        books = self.books
        ledgers = [each.ledger for each in books]
        note: dict[str, Any] = {
            "rank": rank_of(os.environ),
            "command": sys.argv[:1],
            "run_dir": str(self.path) if self.path else None,
            "optimizers": self._optimizers,
            "steps": sum(each.steps for each in ledgers),
            "applied": sum(each.applied for each in ledgers),
            "skipped": sum(each.skipped for each in ledgers),
            "overflows": sum(each.overflows for each in ledgers),
            "rolled_back": sum(each.rollbacks_total for each in ledgers),
            "incidents": self.num_incidents + self.unguarded,
            "halted": any(each.halted for each in ledgers),
            "trainings": len(books),
            "skipped_by_program": sum(each.skipped_by_program for each in books),
            "final_state": self._final_state(watch),
            "backwards": watch.backwards.count,
            "first_bad_backward": watch.backwards.first_bad,
            "in_backward": self.in_backward,
            "in_backward_refused": self.in_backward_refused,
            "held": watch.followers.held,
            "faults": dict(self._shield.faults),
            "crashes": list(self.crashes),
            "trainer": [name for name, _ in self.summaries],
        }
        for _, summary in self.summaries:
            for key in ("steps", "applied", "skipped", "overflows", "rolled_back", "incidents"):
                note[key] += int(summary.get(key) or 0)
            note["halted"] = note["halted"] or bool(summary.get("halted"))
            note["run_dir"] = note["run_dir"] or self._settings.run_dir
        note["notices"] = dict(self.notices)
        if self._notifier is not None:
            self._notifier.close()
        if self._journal is not None:
            if note["final_state"] != "not checked":
                self._journal.event("final_state", state=note["final_state"])
            self._journal.close()
        return note

    def _final_state(self, watch: Watch) -> str:
        """Whether what the optimizers that are still there leave behind is finite. One host read each."""
        with self._shield("final_state", "not checked") as answer:
            states = [bad_state(watch.state_of(desk)) for desk in self.desks]
            bad = [str(name) for state in states for found in state.values() for name in found]
            some = f"finite in {len(states)} of {len(self.books)} trainings"
            if states:
                finite = "finite" if len(states) == len(self.books) else some
                answer.value = "non-finite: " + ", ".join(bad[:3]) if bad else finite
        return answer.value

    def guard_done(self, guard: Any) -> None:
        """A trainer has ended: its guard's counts are kept and its journal is let go."""
        if guard in self.guards:
            self.guards.remove(guard)
            with self._shield("trainer", None):
                self.summaries.append((type(guard).__name__, guard.summary()))
                guard.close()


def rank_of(environment: Any) -> int:
    """This process's rank, as launchers write it."""
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        if str(environment.get(name, "")).isdigit():
            return int(environment[name])
    return 0
