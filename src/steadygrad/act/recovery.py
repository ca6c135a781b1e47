"""Getting back: telling good micro-batches from bad, undoing a poisoned update, rolling back to a snapshot.

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

import torch

from ..errors import UsageError
from ..records import Action, Decision, Outcome, Reading, from_plain, to_plain
from ..watch.gradients import GradientProbe, Gradients, finite_gradients
from ..watch.history import History, Limits
from .books import Books
from .checkpoints import NEVER, CheckpointStore
from .flight import Window
from .forward_state import ForwardState
from .ladder import Ledger
from .past import Past, kinds_and_names, past_of
from .policy import Capabilities
from .program import StepProgram
from .ranks_council import Alone
from .readout import LARGEST
from .shield import Shield
from .snapshots import Snapshot, SnapshotRing
from .tape import Tape, TapedBatch, by_step, named_tensors_in
from .training_state import TrainingState, Tree, bad_state, copy_tree, non_finite

Kept = list[tuple[Any, str]]
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
        self._probe = GradientProbe(program.parameters)
        self._tape = Tape()
        self._histories: dict[int, dict[str, Any]] = {}
        self._bad_keys: set[str] = set()
        self._bad_at_start: frozenset[tuple[str, str]] = frozenset()
        self._careful_left = 0
        self._last_snapshot = 0.0
        self._last_checkpoint = 0
        self._rolling_back = False
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
            taken = self._ring.take(step)
            self._last_snapshot = time.monotonic()
            if self._program.device.type == "cpu" and not taken.good:
                names = self._tell_unnoticed()
                if step == 0:
                    self._bad_at_start = kinds_and_names(names)
            self._histories[step] = self._books.history.to_plain()
            oldest = min(self._ring.steps)
            self._tape.trim(oldest)
            self._histories = {s: h for s, h in self._histories.items() if s >= oldest}

    def _tell_unnoticed(self) -> list[str]:
        """The state is not finite although no step was: a weight that nothing reads, say. Never silent."""
        names = non_finite(self._state.floating_tensors())
        sentence = f"{len(names)} tensors are not finite although every loss and gradient was: {', '.join(names[:3])}"
        self._books.show(sentence, kind="unnoticed")
        self._books.journal.event("state_not_finite", names=names[:32])
        return list(names)

    def checkpoint_due(self, step: int) -> bool:
        return self._store is not None and step // self._store.every > self._last_checkpoint // self._store.every

    def tape(self, step: int, batch: Any, key: str) -> None:
        if self._ring is not None:
            with self._shield("tape", None):
                self._tape.put(step, batch, key)

    def before_update(self) -> None:
        if self._ring is not None:
            self._ring.wait_for_copies()

    def careful_copy(self) -> Tree | None:
        """A copy of everything before an update that may have to be undone; None when not being careful."""
        if not self.careful:
            return None
        self._careful_left -= 1
        copied: Tree = copy_tree(self._state.live(), lambda t: t.clone())
        return copied

    def poisoned_by_update(self, undo: Tree, window: Window) -> dict[str, Any]:
        """If the update made something non-finite, undo it and say what it was. Reads the device."""
        bad = self._council.looked(bad_state(self._state), Reading(step=-1, loss=0.0))
        if not any(bad.values()):
            return {}
        self._state.restore(undo)
        if window.entry is not None:
            self._forward.restore(window.entry)
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

    def is_quarantined(self, key: str) -> bool:
        return key in self._bad_keys

    # -- looking closer at a refused step

    def second_look(self, reading: Reading, window: Window, gradients: Gradients | None) -> tuple[Reading, Kept]:
        """Put back what the refused window's forward moved; find what was wrong and which micro-batches were good.

        Returns the reading with what was found, and the good micro-batches, to be fed again.
        """
        assert window.entry is not None
        looked: dict[str, Any] = {}
        if gradients is not None and math.isinf(reading.grad_norm):
            looked["gradients_finite"] = finite_gradients(gradients)
        self._back_to(window)
        if not reading.undone:
            looked |= bad_state(self._state)
        looked["bad_inputs"] = tuple(
            name or "batch" for name in non_finite([item for b in window.batches for item in _floating(b)])
        )
        looked = self._council.looked(looked, reading)
        clean = not any(looked.get(kind) for kind in ("bad_parameters", "bad_state", "bad_buffers", "bad_inputs"))
        losses_finite = math.isfinite(reading.loss) and all(map(math.isfinite, reading.terms.values()))
        again = self._council.all("can run again", window.can_run_again)
        if clean and losses_finite and math.isinf(reading.grad_norm) and gradients is None and again:
            looked["gradients_finite"] = self._gradients_finite_again(window)
        if clean and losses_finite and self._program.scaler is not None and not math.isfinite(reading.grad_norm):
            # What cannot be tried again is taken for an overflow, as GradScaler takes it; a scale that keeps
            # shrinking is a symptom of its own.
            looked["scale_to_blame"] = self._finite_at_scale_one(window) if again else True
            if looked["scale_to_blame"]:
                self._back_off_scale()
        kept: Kept = []
        may_part = self._program.accumulate > 1 and not self._whole_windows
        if may_part and clean_enough(looked) and not looked.get("scale_to_blame"):
            kept = self._good_micro_batches(reading, window)
        reading = replace(reading, refused=True, **looked)
        may_run = clean and again and not looked.get("scale_to_blame")
        reading = self._council.find_culprits(reading, self._program, window if may_run else None)
        if may_run and self._council.size > 1:
            self._back_to(window)
        return reading, kept

    def _back_to(self, window: Window) -> None:
        assert window.entry is not None
        uncertain = self._forward.restore(window.entry)
        uncertain += [name for name in self._forward.unregistered() if name not in uncertain]
        self._program.zero_grad()
        if uncertain:
            self._books.show(
                f"attributes {', '.join(uncertain)} of the model changed during a refused step and were not seen to "
                "change before, so they may be off; register them with extra_state=",
                kind="unregistered",
            )
            self._books.journal.event("unregistered_state_changed", names=uncertain)

    def _rerun(self, window: Window) -> Gradients | None:
        for batch in window.batches:
            self._program.micro(batch)
        return self._probe.measure()

    def _gradients_finite_again(self, window: Window) -> bool:
        gradients = self._rerun(window)
        answer = gradients is not None and finite_gradients(gradients)
        self._back_to(window)
        return self._council.all("gradients finite", answer)

    def _finite_at_scale_one(self, window: Window) -> bool:
        """Whether the same step is finite without the loss scale: then the scale was too large, and nothing else."""
        scaler = self._program.scaler
        scaler._scale.fill_(1.0)
        gradients = self._rerun(window)
        answer = gradients is None or finite_gradients(gradients)
        self._back_to(window)
        return self._council.all("finite at scale one", answer)

    def _back_off_scale(self) -> None:
        """What GradScaler does after an overflow."""
        scaler = self._program.scaler
        scaler._scale.mul_(scaler.get_backoff_factor())
        scaler._growth_tracker.zero_()

    def good_part(self, window: Window) -> Kept:
        """The good micro-batches of an unfinished window. If some are bad, their traces are gone. Reads the device."""
        finite = all(abs(float(value)) <= LARGEST for terms in window.terms for value in terms.values())
        gradients = self._probe.measure()
        if finite and (gradients is None or finite_gradients(gradients)):
            return list(zip(window.batches, window.keys, strict=True))
        reading = Reading(step=-1, loss=math.nan)
        kept = self._good_micro_batches(reading, window)
        self.quarantine(reading, window, kept)
        return kept

    def _good_micro_batches(self, reading: Reading, window: Window) -> Kept:
        """Run the window's micro-batches one by one from its beginning and keep the good ones."""
        limit = reading.grad_norm_limit if reading.grad_norm_limit is not None else math.inf
        loss_limit = reading.loss_limit if reading.loss_limit is not None else math.inf
        solo: list[tuple[float, Any, str]] = []
        self._back_to(window)
        for batch, key in zip(window.batches, window.keys, strict=True):
            entry = self._forward.take()
            self._program.zero_grad()
            terms = self._program.micro(batch)
            loss_good = terms is not None and all(abs(float(value)) <= LARGEST for value in terms.values())
            loss_good = loss_good and terms is not None and float(terms["loss"]) <= loss_limit
            norm = _norm_of(self._probe.measure(), self._program.scaler)
            if self._council.all("micro-batch", loss_good and math.isfinite(norm)):
                solo.append((norm, batch, key))
            else:
                self._forward.restore(entry)
        if len(solo) == len(window) and solo:
            # Every one is finite, so their sum was too large: leave out those that are too large alone, or the largest.
            cut = limit if any(norm > limit for norm, _, _ in solo) else max(norm for norm, _, _ in solo) * (1 - 1e-9)
            solo = [item for item in solo if item[0] <= cut]
        self._back_to(window)
        return [(batch, key) for _, batch, key in solo]

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


_WIDER = {"fp16": "bf16", "bf16": "fp32", "fp32": "fp32"}


def _numbers(value: Any) -> Any:
    """Undo the strings that stand for non-finite numbers in plain data."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def clean_enough(looked: dict[str, Any]) -> bool:
    """Whether the fault is in the batch and not in what the step started from."""
    return not any(looked.get(kind) for kind in ("bad_parameters", "bad_state", "bad_buffers"))


def _floating(batch: Any) -> list[tuple[str, torch.Tensor]]:
    return [(n, t) for n, t in named_tensors_in(batch) if t.is_floating_point() and t.numel() and not t.is_sparse]


def _norm_of(gradients: Gradients | None, scaler: Any) -> float:
    if gradients is None:
        return 0.0
    total = float(gradients.total)
    return total / float(scaler._scale) if scaler is not None else total


def _first_code(reading: Reading) -> str:
    if reading.bad_inputs:
        return "non_finite_input"
    return "non_finite" if not (math.isfinite(reading.loss) and math.isfinite(reading.grad_norm)) else "spike"
