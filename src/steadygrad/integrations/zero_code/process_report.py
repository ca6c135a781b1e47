"""What one process of a guarded program remembers: its journal, its counts, and what had to be said."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...detect.loop.program_frames import is_ours, running_frame
from ...engine import validate
from ...engine.fault_barrier import FaultBarrier
from ...engine.record.notify import Notifier
from ...engine.record.run_log import RunLog
from ...engine.state.training_state import bad_state, can_be_scanned, non_finite
from ...journal import Journal
from ...journal.program_end import exiting_with, told_of
from ...records import Incident
from ...records.errors import JournalError
from ..optimizer.optimizer_loop import OptimizerLoop
from .launch.run_options import RunOptions

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from .hooks.loop_events import Skipped
    from .process_loop import ProcessLoop

logger = logging.getLogger("steadygrad")
_MOST_BYTES_AT_END = 2 << 30
"""Of weights that no optimizer trains, so many bytes are looked at when the program ends, the smallest first."""


class ProcessReport:
    """Opens the journal when the first update is due, and not before: a program that never trains leaves no trace."""

    def __init__(self, settings: RunOptions, barrier: FaultBarrier) -> None:
        self._settings = settings
        self._barrier = barrier
        self._journal: Journal | None = None
        self._opening = threading.RLock()
        self._notifier: Notifier | None = None
        self.log: list[RunLog] = []
        """One for each optimizer that stepped, in order. They hold no tensor: an optimizer is not kept alive."""
        self._optimizers: list[str] = []
        self._loops: list[weakref.ref[OptimizerLoop]] = []
        self._at_rest: list[weakref.ref[OptimizerLoop]] = []
        self.notices: dict[str, str] = {}
        self.guards: list[Any] = []
        """Guards of a known trainer that look after the program in our stead."""
        self.summaries: list[tuple[str, dict[str, Any]]] = []
        self.in_backward = self.in_backward_refused = self._rounds_refused = 0
        self._refused_at = -1
        self.crashes: list[str] = []
        self._ends: dict[int, list[str]] = {}
        """The bad weights of each training that has ended, by the identity of its log."""
        self.unguarded = 0

    @property
    def first(self) -> RunLog | None:
        """Those of the optimizer whose parameters' norms are recorded."""
        return self.log[0] if self.log else None

    @property
    def living(self) -> list[tuple[OptimizerLoop, Optimizer]]:
        """The optimizers that are still there, and stay as long as this list: one may be collected any time."""
        return _living(self._at_rest) + self.in_use

    @property
    def in_use(self) -> list[tuple[OptimizerLoop, Optimizer]]:
        """Those of the training under way."""
        return _living(self._loops)

    def in_use_at(self, home: Any) -> list[tuple[OptimizerLoop, Optimizer]]:
        """Those of them that step in this loop."""
        found = []
        for reference in self._loops:
            if (loop := reference()) is not None and loop.around is home and (optimizer := loop.living) is not None:
                found.append((loop, optimizer))
        return found

    @property
    def loops(self) -> list[OptimizerLoop]:
        """Their loops."""
        return [loop for loop, _ in self.living]

    @property
    def path(self) -> Path | None:
        return self._journal.path if self._journal is not None else None

    def tell(self, kind: str, sentence: str) -> None:
        """Say something about this program once, now and in the end."""
        if kind not in self.notices:
            logger.warning("%s", sentence)
            self.say_at_end(kind, sentence)

    def refused_in_backward(self, backward: int) -> None:
        """An update inside this backward was refused."""
        self.in_backward_refused += 1
        self._refused_at = backward

    def words_of(self, left_out: Skipped, backward: int) -> str:
        """A round without an update in words: it is no skip of the program's if its updates inside backward were
        refused."""
        if self._refused_at != backward:
            return str(left_out)
        self._rounds_refused += 1
        return f"updates inside backward were refused: the loss is {left_out.loss}"

    def not_restored(self, loop: OptimizerLoop, names: list[str]) -> None:
        """A refused batch moved these, and there is no copy of them from just before it."""
        loop.log.journal.event("unregistered_state_changed", names=names)
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        self.tell("not_restored", f"a refused batch changed {shown}, which may not be as before it")

    def say_at_end(self, kind: str, sentence: str) -> None:
        """Say something about this program in the end."""
        self.notices[kind] = sentence
        if self._journal is not None:
            self._journal.event("notice", kind=kind, sentence=sentence)

    def journal(self, names: list[str], optimizer: Optimizer | None) -> Journal:
        """The journal of this process, made for its first optimizer."""
        with self._opening:  # several threads may begin to train at once
            return self._journal or self._begin(names, optimizer)

    def _begin(self, names: list[str], optimizer: Optimizer | None) -> Journal:
        config = validate.run_config(
            self._settings.policy, "the program's own", 1, [optimizer] if optimizer is not None else []
        ) | {"entry_point": "steady run"}
        self._journal = journal = self._open(names, config)
        self._barrier.report_to(journal.event)
        for kind, sentence in self.notices.items():
            journal.event("notice", kind=kind, sentence=sentence)
        self._notifier = Notifier(self._settings.notify or None, run=str(journal.path or ""))
        self._settings.leave_note(begun=True, torch=True, guarded=True, run_dir=str(journal.path or ""))
        return journal

    def _open(self, names: list[str], config: dict[str, Any]) -> Journal:
        rank = rank_of(os.environ)
        wished = self._settings.run_dir
        for place in (wished, f"{wished}-process{os.getpid()}" if wished else None):
            try:
                journal = Journal(place, names=names, run_config=config, rank=rank, resumes=True)
                if self._settings.reports is not None:  # then `close` is called at exit, after a look at the last round
                    journal.stay_open_at_exit()
                return journal
            except JournalError as error:
                self.tell("journal", str(error))
        return Journal(None, names=names, run_config=config, rank=rank)

    def enter(self, loop: OptimizerLoop, *, first_step: int) -> None:
        """An optimizer stepped for the first time."""
        self.log.append(loop.log)
        self._loops = [reference for reference in self._loops if reference() is not None] + [weakref.ref(loop)]
        name = type(loop.optimizer).__name__
        self._optimizers.append(name)
        loop.log.on_incident = self._notifier
        if self._journal is not None:  # a program may begin thousands, and each would wait for the disk
            self._journal.event_later("training_begins", training=len(self.log), first_step=first_step, optimizer=name)

    def rest(self, buffers: dict[str, Tensor]) -> None:
        """A training has ended: its optimizers cost nothing until one of them is used again."""
        for loop, _ in self.in_use:  # what is dropped in a cycle of references goes unnoticed
            loop.rests = True
            self._look_at_end(loop.log, {**loop.named_parameters(), **buffers})
        self._at_rest = [reference for reference in self._at_rest + self._loops if reference() is not None]
        self._loops = []

    def wake(self) -> None:
        """An optimizer or a model of an earlier training is in use again."""
        for loop, _ in self.living:
            loop.rests = False
            self._ends.pop(id(loop.log), None)
        self._at_rest, self._loops = [], self._at_rest + self._loops

    def renamed(self, loop: OptimizerLoop) -> None:
        """Parameters were added to an optimizer."""
        if self._journal is not None and loop.log is self.first:
            self._journal.set_names(loop.names)

    def event(self, kind: str, **data: Any) -> None:
        if self._journal is not None:
            self._journal.event(kind, **data)

    @property
    def num_incidents(self) -> int:
        """How many incidents all trainings of this process have had."""
        return sum(len(log.incidents) for log in self.log)

    def note_unguarded(self, backward: int | None) -> None:
        """An incident for a bad loss of a program whose updates could not be refused: no torch optimizer made them."""
        if backward is None or self.log or self.in_backward or self.guards or self.summaries:
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

    def close(self, watch: ProcessLoop) -> dict[str, Any]:
        """Close the journal; what this process tells the supervisor."""
        for guard in list(self.guards):
            self.guard_done(guard)
        log = self.log
        ledgers = [each.ledger for each in log]
        final_state = self._final_state(watch)
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
            "trainings": len(log),
            "skipped_by_program": sum(each.skipped_by_program for each in log) - self._rounds_refused,
            "final_state": final_state,
            "backwards": watch.backwards.count,
            "first_bad_backward": watch.backwards.first_bad,
            "in_backward": self.in_backward,
            "in_backward_refused": self.in_backward_refused,
            "held": watch.followers.held,
            "faults": dict(self._barrier.faults),
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
        note["ended"] = exiting_with()
        if self._journal is not None:
            if note["final_state"] != "not checked":
                self._journal.event("final_state", state=note["final_state"])
            self._journal.ended_with(note["ended"] or told_of(None))
            self._journal.close()
        return note

    def dropped(self, log: RunLog, weights: dict[str, Tensor]) -> bool:
        """Look at the weights of a training that the program drops: one host read. Whether it was the last one. Not
        while code of ours runs, or the process ends."""
        if sys.is_finalizing() or is_ours(running_frame(3)):
            return False
        self._look_at_end(log, weights)
        return not self.loops

    def _look_at_end(self, log: RunLog, weights: dict[str, Tensor]) -> None:
        with self._barrier("final_state", None):
            read = [(name, each.detach()) for name, each in weights.items() if can_be_scanned(each)]
            if read:  # else nothing is known of them
                self._ends[id(log)] = non_finite(read)

    def _final_state(self, watch: ProcessLoop) -> str:
        """Whether what the optimizers and trainers leave behind is finite. One host read each."""
        with self._barrier("final_state", "not checked") as answer:
            living = self.living
            states = [bad_state(loop.around.state_of(loop)) for loop, _ in living]
            for (loop, _), state in zip(living, states, strict=True):
                loop.log.enter_bad_buffers(loop.log.ledger.steps, state["bad_buffers"])
            bad = [str(name) for state in states for found in state.values() for name in found]
            there = {id(loop.log) for loop, _ in living}
            ends = [names for log, names in self._ends.items() if log not in there]
            bad += [name for names in ends for name in names]
            guards = [str(summary.get("final_state", "not checked")) for _, summary in self.summaries]
            bad += [each.removeprefix("non-finite: ") for each in guards if each.startswith("non-finite")]
            checked = len(states) + len(ends) + sum(each != "not checked" for each in guards)
            trainings = len(self.log) + len(guards)
            judged = {id(parameter) for loop, _ in living for parameter in loop.parameters}
            bad += [name for name in _with_nan(watch.models.all.named_parameters(), judged) if name not in bad]
            if checked or bad:
                finite = "finite" if checked >= trainings else f"finite in {checked} of {trainings} trainings"
                answer.value = "non-finite: " + ", ".join(bad[:3]) if bad else finite
        return answer.value

    def guard_done(self, guard: Any) -> None:
        """A trainer has ended: its guard's counts are kept and its journal is let go."""
        if guard in self.guards:
            self.guards.remove(guard)
            with self._barrier("trainer", None):
                guard.close()  # before its counts: it looks at the weights then
                self.summaries.append((type(guard).__name__, guard.summary()))


def _with_nan(named: list[tuple[str, Tensor]], judged: set[int]) -> list[str]:
    """Parameters with a NaN that no optimizer trains at the end: of a training that has ended, an average, a model that
    the program updates itself. Infinities may be meant. One host read for each device; large ones are left out."""
    others = [(name, each.detach()) for name, each in named if id(each) not in judged and can_be_scanned(each)]
    others.sort(key=lambda item: item[1].nbytes)
    until = itertools.accumulate(tensor.nbytes for _, tensor in others)
    read = [each for each, size in zip(others, until, strict=True) if size <= _MOST_BYTES_AT_END]
    bad = set(non_finite([(str(place), tensor) for place, (_, tensor) in enumerate(read)]))
    return [name for place, (name, tensor) in enumerate(read) if str(place) in bad and bool(tensor.isnan().any())]


def _living(references: list[weakref.ref[OptimizerLoop]]) -> list[tuple[OptimizerLoop, Optimizer]]:
    loops = [loop for reference in references if (loop := reference()) is not None]
    return [(loop, optimizer) for loop in loops if (optimizer := loop.living) is not None]


def rank_of(environment: Any) -> int:
    """This process's rank, as launchers write it."""
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        if str(environment.get(name, "")).isdigit():
            return int(environment[name])
    return 0
