"""Getting back: undoing a poisoned update, rolling back to a snapshot, quarantine, checkpoints.

Everything here is off the hot path. It may read the device and run steps again; it must end with state that is bit
for bit that of a run which never saw the bad batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..detect.detectors import non_finite_buffer, non_finite_optimizer_state, non_finite_parameter
from ..detect.history import History, Limits
from ..errors import UsageError
from ..policy import Capabilities
from ..policy.escalation import Ledger
from ..records import Action, Decision, Finding, Outcome, Reading, from_plain, to_plain
from .books import Books
from .checkpoints import NEVER, CheckpointStore
from .flight import Window
from .forward_state import ForwardState
from .past import Past, kinds_and_names, past_of
from .posted import is_fatal
from .program import StepProgram
from .ranks_council import Alone
from .second_look import Kept, SecondLook
from .second_opinion import SecondOpinion
from .shield import Shield
from .snapshots import Snapshot, SnapshotRing
from .tape import Tape, TapedBatch, by_step
from .training_state import TrainingState, Tree, bad_state, copy_tree, non_finite

_CAREFUL_STEPS = 20
_SNAPSHOT_SHARE = 0.001


class RollBackAgain(Exception):
    """A step failed while a rollback was re-running batches: unwind to that rollback and start it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbs:
    """What recovery asks of the guard."""

    run_again: Callable[[Sequence[tuple[Any, str]], Outcome | None], None]
    step_now: Callable[[], int]
    reset_to: Callable[[int], None]
    halt: Callable[[Decision], None]


class Recovery:
    """The rare path of one guard."""

    def __init__(
        self,
        verbs: Verbs,
        *,
        program: StepProgram,
        forward: ForwardState,
        state: TrainingState,
        books: Books,
        shield: Shield,
        ring: SnapshotRing | None,
        store: CheckpointStore | None,
        can_clip: bool,
        whole_windows: bool = False,
        council: Alone | None = None,
    ) -> None:
        self._verbs = verbs
        self._program = program
        self._forward = forward
        self._state = state
        self._books = books
        self._shield = shield
        self._ring = ring
        self._store = store
        self.can_clip = can_clip
        self._whole_windows = whole_windows
        self._council = council or Alone()
        self.second_look = SecondLook(
            program=program, forward=forward, state=state, books=books, council=self._council, whole=whole_windows
        )
        self._tape, self._opinion = Tape(), SecondOpinion(program, forward, books.journal)
        self._histories: dict[int, dict[str, Any]] = {}
        self._bad_keys: set[str] = set()
        self._unnoticed: set[str] = set()
        self._seen_bad: set[str] = set()
        self._bad_at_start: frozenset[tuple[str, str]] = frozenset()
        self._careful_left = 0
        self._last_snapshot = 0.0
        self._last_checkpoint = 0
        self._rolling_back = False
        self._bad_by_then: dict[str, Any] = {}
        self._terms_add_up: bool | None = None
        self._narrow = program.precision

    # -- before and around an update

    @property
    def careful(self) -> bool:
        """Whether every update is checked and can be undone, as after a rollback from poisoned weights."""
        return self._careful_left > 0

    def snapshot_due(self, step: int) -> bool:
        """At once if there is none, then once in each stretch of `snapshot_every` steps.

        On a GPU, where copying a large state out takes longer than a step hides, so seldom that it stays a small
        share of the time.
        """
        every = self._books.policy.snapshot_every
        if self._ring is None:
            return False
        if not self._ring.steps:
            return True
        if step // every <= self._ring.steps[-1] // every:
            return False
        return self._council.all(
            "snapshot", self._ring.seconds <= _SNAPSHOT_SHARE * (time.monotonic() - self._last_snapshot)
        )

    def take_snapshot(self, step: int) -> None:
        """Copy the state before forward of this step. The step before it is settled."""
        with self._shield("snapshots", None):
            assert self._ring is not None
            # On a GPU the copy is still under way, so the one before is asked: its answer is there without waiting.
            before = self._ring.all()[-1:]
            taken = self._ring.take(step)
            self._last_snapshot = time.monotonic()
            asked = [taken] if self._program.device.type == "cpu" else before
            if not all(snapshot.good for snapshot in asked):
                names = self._tell_unnoticed(step)
                if step == 0:
                    self._bad_at_start = kinds_and_names(names)
            self._histories[step] = self._books.history.to_plain()
            oldest = min(self._ring.steps)
            self._tape.trim(oldest)
            self._histories = {s: h for s, h in self._histories.items() if s >= oldest}

    def _tell_unnoticed(self, step: int) -> list[str]:
        """The state is not finite although no step was: a weight that nothing reads, say. Never silent, and told once;
        nothing is undone, for the run may well be sound without it."""
        names = list(non_finite(self._state.floating_tensors()))
        # A buffer may be a figure for a log, or wait for its first value: it is told of if it was finite at the start
        # and is still bad one snapshot later.
        doubtful = {name for name in names if name.startswith("buffer ") and (step == 0 or name not in self._seen_bad)}
        fresh = [name for name in names if name not in self._unnoticed and name not in doubtful]
        self._unnoticed |= {*fresh, *(doubtful if step == 0 else ())}
        self._seen_bad = set(names)
        if fresh:
            self._books.journal.event("state_not_finite", names=names[:32])
        for kind, rule in _UNNOTICED.items():
            if mine := [name.removeprefix(kind) for name in fresh if name.startswith(kind)]:
                self._books.tell_unnoticed(rule, step, mine)
        return names

    def checkpoint_due(self, step: int) -> bool:
        return self._store is not None and step // self._store.every > self._last_checkpoint // self._store.every

    def tape(self, step: int, batch: Any, key: str) -> None:
        if self._ring is not None:
            with self._shield("tape", None):
                self._tape.put(step, batch, key)

    def before_update(self) -> None:
        if self._ring is not None:
            self._ring.wait_for_copies()

    def careful_copy(self, *, uneasy: bool = False) -> Tree | None:
        """A copy of everything before an update that may have to be undone; None when not being careful.

        `uneasy` asks for one although nothing bad has happened. What is bad by then is remembered. That copy goes to
        host memory, which waits for a device: a run that just fits on its GPU must not end for want of room for it.
        """
        self._bad_by_then = {}
        careful = self.careful
        if not careful and not uneasy:
            return None
        if careful:
            self._careful_left -= 1
        else:
            self._bad_by_then = bad_state(self._state)
        where = None if careful else "cpu"
        copied: Tree = copy_tree(self._state.live(), lambda t: t.to(where or t.device, copy=True))
        return copied

    def poisoned_by_update(self, undo: Tree, window: Window) -> dict[str, Any]:
        """If the update made something non-finite, undo it and say what it was. Reads the device."""
        bad = self._council.looked(bad_state(self._state), Reading(step=-1, loss=0.0))
        if (before := self._bad_by_then) and not set(bad["bad_parameters"]) - set(before["bad_parameters"]):
            return {}  # what is bad was so before, or is no weight: it is told of elsewhere
        if not any(bad.values()):
            return {}
        self._state.restore(undo)
        if window.entry is not None:
            self._forward.restore(window.entry)
        if before and before["bad_state"]:
            return before  # the update only passed on what had been put into its moments
        return {**bad, "undone": True}

    def books_tree(self, step: int, batches_seen: int) -> dict[str, Any]:
        """What a resumed run needs besides the training state."""
        return {
            "step": step,
            "batches_seen": batches_seen,
            "ledger": to_plain(self._books.ledger),
            "history": to_plain(self._books.history.to_plain()),
            "limits": to_plain(self._books.limits_in_force),
            "bad_keys": sorted(self._bad_keys),
            "ranks": self._council.size,
        }

    def save_checkpoint(self, step: int, batches_seen: int) -> Path | None:
        """Write a checkpoint now; a disk that refuses is told about and does not stop training."""
        self._last_checkpoint = step
        with self._shield("checkpoints", None) as answer:
            assert self._store is not None
            answer.value = self._store.save(step, self.books_tree(step, batches_seen))  # type: ignore[assignment]
        return answer.value

    def save_before_halt(self, step: int, batches_seen: int) -> None:
        """The last good state goes to disk, for whoever finds out why and goes on."""
        if self._store is not None and self._store.every < NEVER:
            self.save_checkpoint(step, batches_seen)

    def resume(self) -> tuple[int, int] | None:
        """Continue from the newest good checkpoint: state, counters, baselines, quarantine. Step and batches seen."""
        loaded = self._council.common_checkpoint(self._store) if self._store is not None else None
        if loaded is None:
            return None
        step, tree, books = loaded
        if (why := self._state.mismatch(tree)) is not None:
            raise UsageError(
                f"The checkpoint of step {step} is of another program: {why}. Nothing was loaded. "
                "Resume with the model and optimizer it was written by, or use another run_dir."
            )
        self._state.restore(tree)
        # Who resumes a halted run has decided to go on.
        ledger = from_plain(Ledger, books["ledger"])
        self._books.ledger = ledger.but(halted=False, streak=0) if ledger.halted else ledger
        self._books.history = History.from_plain(_numbers(books["history"]))
        if "limits" in books:  # older checkpoints have none: the first step then computes them anew
            self._books.limits_in_force = from_plain(Limits, books["limits"])
        self._bad_keys = set(books["bad_keys"])
        self._last_checkpoint = int(books["step"])
        self._program.dropped_terms = ledger.dropped_terms
        self._program.precision = _WIDER[self._narrow] if ledger.widened else self._narrow
        return int(books["step"]), int(books["batches_seen"])

    def recent_good(self, window: Window, steps: int = 3) -> list[list[Any]]:
        """The micro-batches of a few good steps before this window, for the clinic to follow a remedy with."""
        bad = self._bad_keys | set(window.keys)
        size = max(self._program.accumulate, len(window))
        good = [t for t in self._tape.newest((steps + 1) * size + len(bad)) if t.key not in bad and not t.changed()]
        if self._whole_windows:
            groups = by_step(good)[-steps:]
        else:
            good = good[-steps * size :]
            groups = [good[i : i + size] for i in range(0, len(good) - size + 1, size)]
        return [[taped.fetch() for taped in group] for group in groups]

    def past(self, window: Window, scheduler: Any) -> Past | None:
        """The good snapshots and the landed steps since the oldest, for the clinic to go back to. Copies nothing."""
        if self._ring is None or self._council.size > 1:
            return None
        return past_of(self._ring, self._tape, self._bad_keys | set(window.keys), scheduler, self._bad_at_start)

    def doubt(self, reading: Reading, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """The findings, after old batches were asked about a divergence. Runs a few forwards where there is one."""
        if not findings or self._council.size > 1 or self._rolling_back:
            return tuple(findings)
        with self._shield("watch", tuple(findings)) as answer:
            answer.value = self._opinion.of(reading, findings, self._tape.newest(len(self._tape)), self._books.recent)
        return answer.value

    def is_only_hard(self, reading: Reading, window: Window) -> bool:
        """Whether a young run was refused a batch for its high loss alone, and batches from before do as well as ever.

        Then nothing is wrong with the weights, and its gradient is no longer than others. Runs a few forwards.
        """
        numbers = (reading.loss, reading.grad_norm, *reading.terms.values(), *reading.micro_losses)
        history, limit = self._books.history, reading.grad_norm_limit
        in_line = all(map(math.isfinite, numbers)) and (limit is None or reading.grad_norm <= limit)
        too_high = reading.loss_limit is not None and max([reading.loss, *reading.micro_losses]) > reading.loss_limit
        poisoned = reading.bad_parameters or reading.bad_state or reading.bad_buffers or is_fatal(reading.posted)
        if not (in_line and too_high and window.can_run_again and history.is_young(self._books.policy)) or poisoned:
            return False
        with self._shield("watch", False) as answer:
            self.second_look.put_back(window)
            taped = self._tape.newest(len(self._tape))
            answer.value = self._opinion.calls_it_hard(reading, taped, self._books.recent)
            if answer.value:
                history.expect_loss(max([reading.loss, *reading.micro_losses]))
        return answer.value

    def good_part(self, window: Window) -> Kept:
        """The good micro-batches of an unfinished window. If some are bad, their traces are gone. Reads the device."""
        kept = self.second_look.good_part(window)
        if kept is None:
            return window.fed
        self.quarantine(Reading(step=-1, loss=math.nan), window, kept)
        return kept

    # -- acting on a decision

    def quarantine(self, reading: Reading, window: Window, kept: Kept) -> None:
        """Remember which batches were refused, so that a rollback or a resumed run leaves them out."""
        poisoned = reading.bad_parameters or reading.bad_state or reading.bad_buffers
        if reading.scale_to_blame or (poisoned and not reading.undone and not reading.bad_inputs):
            return  # the batch is not to blame: it will be tried again from a good state
        good = {key for _, key in kept}
        for key in window.keys:
            if key not in good:
                self._bad_keys.add(key)
                with self._shield("journal", None):
                    self._books.journal.quarantine(key, step=reading.step, cause=_first_code(reading))

    def apply(self, decision: Decision) -> None:
        """Put the ladder's rungs in force: dropped terms and wider precision. LR and clip are read off the ledger."""
        self._program.dropped_terms = decision.dropped_terms
        self._program.precision = _WIDER[self._narrow] if decision.widened else self._narrow

    def capabilities(self) -> Capabilities:
        terms: tuple[str, ...] = ()
        if self._terms_add_up:
            terms = self._term_names
        good = self._ring is not None and bool(self._ring.steps)
        return Capabilities(clip=self.can_clip, rollback=good, terms=terms, widen=self._narrow == "fp16")

    _term_names: tuple[str, ...] = ()

    def note_terms(self, reading: Reading) -> None:
        """Terms can be dropped only if they are what the loss is made of: their sum is the loss on healthy steps."""
        if not reading.terms or self._program.dropped_terms:
            return
        if len(reading.terms) > 1:
            gap = abs(reading.loss - sum(reading.terms.values()))
            adds_up = gap <= 1e-3 * max(abs(reading.loss), 1e-12)
            self._terms_add_up = adds_up and self._terms_add_up is not False
            self._term_names = tuple(reading.terms)

    def roll_back(self, decision: Decision, outcome: Outcome | None) -> int | None:
        """Restore the newest good snapshot and run the good batches since then again. Returns its step."""
        if self._rolling_back:
            raise RollBackAgain
        diverged = any(found.code == "SY203" for found in decision.findings)
        while True:
            snapshot = self._snapshot_for(decision) if self._ring is not None else None
            if snapshot is None:
                self._verbs.halt(
                    replace(
                        decision,
                        actions=(*decision.actions, Action.HALT),
                        reason=f"{decision.reason}; and no snapshot from before it is finite",
                    )
                )
                return None
            # After a divergence the batches that led there are left behind: they would lead there again.
            taped = self._restore(snapshot, again=not diverged)
            self._rolling_back = True
            try:
                for group in by_step(taped) if self._whole_windows else [[batch] for batch in taped]:
                    for batch in group:
                        # Refused batches had step numbers of their own, so the numbers are others this time.
                        batch.step = self._verbs.step_now()
                    last = group[-1] is taped[-1]
                    self._verbs.run_again([(b.fetch(), b.key) for b in group], outcome if last else None)
                return snapshot.step
            except RollBackAgain:
                continue
            finally:
                self._rolling_back = False

    def _snapshot_for(self, decision: Decision) -> Snapshot | None:
        assert self._ring is not None
        best = [found.evidence.get("best_step") for found in decision.findings if found.code == "SY203"]
        onset = next((int(step) for step in best if step is not None), None)
        return self._council.good_snapshot(self._ring, onset)

    def _restore(self, snapshot: Snapshot, *, again: bool) -> list[TapedBatch]:
        assert self._ring is not None
        self._state.restore(snapshot.tree)
        self._program.zero_grad()
        self._ring.discard_after(snapshot.step)
        with self._shield("watch", None):
            self._books.history = History.from_plain(self._histories[snapshot.step])
            self._books.history.rewind()
        self._verbs.reset_to(snapshot.step)
        self._tape.drop(self._bad_keys)
        taped = self._council.taped(self._tape.since(snapshot.step))
        if not again:
            self._tape.forget_from(snapshot.step)
            return []
        self._careful_left = (len(taped) if taped else 0) + _CAREFUL_STEPS
        if taped is None:
            self._books.show(
                "the batches since the snapshot are no longer kept, so the rollback could not run them again",
                kind="rollback_without_batches",
            )
            return []
        return taped


_UNNOTICED = {"parameter ": non_finite_parameter.RULE, "optimizer ": non_finite_optimizer_state.RULE,
              "buffer ": non_finite_buffer.RULE}  # fmt: skip
_WIDER = {"fp16": "bf16", "bf16": "fp32", "fp32": "fp32"}


def _numbers(value: Any) -> Any:
    """Undo the strings that stand for non-finite numbers in plain data."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def _first_code(reading: Reading) -> str:
    if reading.bad_inputs:
        return "non_finite_input"
    return "non_finite" if not (math.isfinite(reading.loss) and math.isfinite(reading.grad_norm)) else "spike"
