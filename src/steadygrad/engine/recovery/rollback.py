"""Getting back: undoing a poisoned update, rolling back to a snapshot, quarantine, checkpoints.

Everything here is off the hot path. It may read the device and run steps again; it must end with state that is bit
for bit that of a run which never saw the bad batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...detect.detectors.non_finite import non_finite_buffer, non_finite_optimizer_state, non_finite_parameter
from ...detect.history import History, RefusalLimits
from ...detect.tensors.kept_content import KeptContent
from ...policy import Capabilities
from ...policy.escalation import Ledger
from ...records import Action, Decision, Finding, Outcome, Reading, from_plain, to_plain
from ...records.errors import UsageError
from ..build_parts import Parts
from ..engine import Engine, Step
from ..state.batch_buffer import BatchBuffer, BufferedBatch, FetchedBatches, by_step
from ..state.checkpoint_store import NEVER, CheckpointStore
from ..state.earlier_steps import EarlierSteps, earlier_steps_of, kinds_and_names
from ..state.rng import RngState
from ..state.snapshot_ring import Snapshot, SnapshotRing
from ..state.training_state import non_finite
from ..step.window import Window
from .divergence.divergence_check import DivergenceCheck
from .divergence.rate_choice import RateChoice
from .divergence.rate_trial import RateTrial
from .refusal_analysis import Kept, RefusalAnalysis

if TYPE_CHECKING:
    from ..owned_loop import OwnedLoop

_CAREFUL_STEPS = 20
_SNAPSHOT_SHARE = 0.001


class RollBackAgain(Exception):
    """A step failed while a rollback was re-running batches: unwind to that rollback and start it over."""


class Rollback:
    """The rare path of one guard."""

    def __init__(
        self, parts: Parts, ring: SnapshotRing | None, store: CheckpointStore | None, *, whole_windows: bool = False
    ) -> None:
        self.loop: OwnedLoop
        self._program, self._forward, self._state = parts.program, parts.forward, parts.state
        self._log, self._barrier, self._consensus = parts.log, parts.barrier, parts.consensus
        self._ring, self._store = ring, store
        self.can_clip = parts.updater.max_grad_norm is not None
        self._whole_windows = whole_windows
        self.second_look = RefusalAnalysis(
            program=parts.program, forward=parts.forward, state=parts.state, log=parts.log, consensus=parts.consensus,
            whole=whole_windows,
        )  # fmt: skip
        self._batch_buffer = BatchBuffer()
        self.rate_trial = trial = RateTrial(parts)
        self._divergence = DivergenceCheck(parts, trial, parts.log.policy)
        self.rates = RateChoice(parts, trial, ring, lambda: self._batch_buffer)
        self._histories: dict[int, dict[str, Any]] = {}
        self._bad_keys: set[str] = set()
        self._unnoticed: set[str] = set()
        self._seen_bad: set[str] = set()
        self._bad_at_start: frozenset[tuple[str, str]] = frozenset()
        self._last_snapshot = 0.0
        self._last_checkpoint = 0
        self.rolling_back = False
        self._remedied = True
        """Whether remedies are in force that have to be undone; at the start it is not known."""
        self._terms_add_up: bool | None = None
        self._narrow = parts.program.precision

    # -- before and around an update

    def snapshot_due(self, step: int) -> bool:
        """At once if there is none, then once in each stretch of `snapshot_every` steps.

        On a GPU, where copying a large state out takes longer than a step hides, so seldom that it stays a small
        share of the time.
        """
        every = self._log.policy.snapshot_every
        if self._ring is None:
            return False
        if self._ring.last_step < 0:
            return True
        if self._divergence.open:
            return False  # the snapshots from before it are needed until it is confirmed or not
        if step // every <= self._ring.last_step // every:
            return False
        return self._consensus.all(
            "snapshot", self._ring.seconds <= _SNAPSHOT_SHARE * (time.monotonic() - self._last_snapshot)
        )

    def take_snapshot(self, step: int) -> None:
        """Copy the state before forward of this step. The step before it is settled."""
        with self._barrier("snapshots", None):
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
            self._histories[step] = self._log.history.to_plain()
            oldest = min(self._ring.steps)
            self._batch_buffer.trim(oldest)
            self._histories = {s: h for s, h in self._histories.items() if s >= oldest}

    def _tell_unnoticed(self, step: int) -> list[str]:
        """The state is not finite although no step was: a weight that nothing reads, say. Never silent, and told once;
        nothing is undone, for the run may well be finite without it."""
        names = list(non_finite(self._state.floating_tensors()))
        # A buffer may be a figure for a log, or wait for its first value: it is reported if it was finite at the start
        # and is still bad one snapshot later.
        doubtful = {name for name in names if name.startswith("buffer ") and (step == 0 or name not in self._seen_bad)}
        fresh = [name for name in names if name not in self._unnoticed and name not in doubtful]
        self._unnoticed |= {*fresh, *(doubtful if step == 0 else ())}
        self._seen_bad = set(names)
        if fresh:
            self._log.journal.event("state_not_finite", names=names[:32])
        for kind, rule in _UNNOTICED.items():
            if mine := [name.removeprefix(kind) for name in fresh if name.startswith(kind)]:
                self._log.tell_unnoticed(rule, step, mine)
        return names

    def checkpoint_due(self, step: int) -> bool:
        return self._store is not None and step // self._store.every > self._last_checkpoint // self._store.every

    def release(self) -> None:
        """Keep no state and no batch: nothing is rolled back any more."""
        if self._ring is not None:
            self._ring.clear()
        self._batch_buffer = BatchBuffer()

    def batch_buffer(
        self, step: int, batch: Any, key: str, rng: RngState | None = None, content: KeptContent | None = None
    ) -> None:
        """Keep a batch, with the random state its forward begins with, so that it can be run again."""
        if self._ring is not None:
            try:
                self._batch_buffer.put(step, batch, key, rng, content)
            except Exception as fault:
                self._barrier.note("tape", fault)

    def as_fed(self, step: int, window: Window, later: Window | None = None) -> Window:
        """The window with the content that its micro-batches had when they were fed; what is lost cannot be run
        again."""
        lost = window.as_fed(self._batch_buffer.copy_of, later.contents if later is not None else ())
        if lost:
            self._log.tell_batch_overwritten(step, lost)
        return window

    def rngs_of(self, batches: Kept) -> list[RngState | None]:
        """The random states that these of the newest micro-batches began with, where they are known."""
        newest = {each.key: each.rng for each in self._batch_buffer.newest(4 * len(batches))}
        return [newest.get(key) for _, key in batches]

    def before_update(self) -> None:
        if self._ring is not None and self._ring.copying:
            self._ring.wait_for_copies()

    def parameters_changed(self, step: int) -> None:
        """Parameters were unfrozen or added: older snapshots know nothing of them, so a new one replaces them."""
        if self._ring is not None:
            self._ring.clear()
            self._histories.clear()
            self.take_snapshot(step)

    def final_state(self) -> str:
        """Whether everything that training leaves behind is finite: "finite", or what is not. One host read. Buffers
        that are not, of which no step told, are an incident."""
        names = non_finite(self._state.floating_tensors())
        buffers = tuple(name.removeprefix("buffer ") for name in names if name.startswith("buffer "))
        self._log.enter_bad_buffers(self.loop.step, buffers)
        return "finite" if not names else "non-finite: " + ", ".join(names[:3])

    # -- divergence

    def note(self, reading: Reading, decision: Decision) -> None:
        """An applied step: its loss, what is learned of its terms, and whether a divergence is suspected."""
        if self._ring is not None:
            self._batch_buffer.losses[reading.step] = reading.loss
        if reading.terms:
            self._note_terms(reading)
        if decision.findings or self._divergence.watching:
            self._divergence.note(reading, decision.findings)
        if decision.rung or self._remedied:
            self.apply(decision)

    def anything_due(self, step: int) -> bool:
        """Whether before this step a snapshot or a checkpoint may be due, or a divergence to be looked into."""
        ring, store = self._ring, self._store
        every = self._log.policy.snapshot_every
        watches = self._divergence.watching or step >= self._divergence.next_look
        if ring is not None and (watches or step // every > ring.last_step // every):
            return True
        if self._remedied and self.rates.others_due():
            return True
        return store is not None and step // store.every > self._last_checkpoint // store.every

    def divergence_due(self, step: int) -> bool:
        return self._ring is not None and self._consensus.size == 1 and self._divergence.due(step)

    def check_divergence(self, engine: Engine, step: int) -> None:
        """Evaluate batches again where a divergence is suspected; where it is demonstrated, let the engine decide."""
        assert self._ring is not None
        nothing: tuple[Reading, Finding] | None = None
        with self._barrier("divergence_check", nothing) as answer:
            answer.value = self._divergence.look(
                step, self._snapshots_for_divergence(), self._batch_buffer, self._log.history, self._log.ledger
            )
        if answer.value is not None and self._log.policy.acts:
            reading, found = answer.value
            self.rates.shown_by = self._divergence.shown_by
            engine.act_on(Step(step, Window(), Outcome(step=step)), replace(reading, step=step), (found,))
            self.rates.shown_by = None

    def _snapshots_for_divergence(self) -> list[Snapshot]:
        """The last good one from before it, and those since."""
        assert self._ring is not None
        good, onset = self._ring.good(), self._log.history.best_step
        if onset is None:
            return good
        before = [snapshot for snapshot in good if snapshot.step <= onset]
        if before:
            return [*before[-1:], *good[len(before) :]]
        level, best = self._log.history.loss_level, self._log.history.best_level
        if level is None or best is None:
            return []
        # None is left from before the best losses: then from when they were still nearer to them than to these.
        levels = [(snapshot, self._histories[snapshot.step].get("loss_level")) for snapshot in good]
        return [snapshot for snapshot, then in levels if then is not None and then - best < 0.5 * (level - best)]

    def log_tree(self, step: int, batches_seen: int) -> dict[str, Any]:
        """What a resumed run needs besides the training state."""
        return {
            "step": step,
            "batches_seen": batches_seen,
            "ledger": to_plain(self._log.ledger),
            "history": to_plain(self._log.history.to_plain()),
            "limits": to_plain(self._log.limits_in_force),
            "bad_keys": sorted(self._bad_keys),
            "ranks": self._consensus.size,
        }

    def save_checkpoint(self, step: int, batches_seen: int) -> Path | None:
        """Write a checkpoint now; a disk that refuses is told about and does not stop training."""
        self._last_checkpoint = step
        with self._barrier("checkpoints", None) as answer:
            assert self._store is not None
            answer.value = self._store.save(step, self.log_tree(step, batches_seen))  # type: ignore[assignment]
        return answer.value

    def save_before_halt(self, step: int, batches_seen: int) -> None:
        """The last good state goes to disk, for whoever finds out why and goes on."""
        if self._store is not None and self._store.every < NEVER:
            self.save_checkpoint(step, batches_seen)

    def resume(self) -> tuple[int, int] | None:
        """Continue from the newest good checkpoint: state, counters, baselines, quarantine. Step and batches seen."""
        loaded = self._consensus.common_checkpoint(self._store) if self._store is not None else None
        if loaded is None:
            return None
        step, tree, log = loaded
        if (why := self._state.mismatch(tree)) is not None:
            raise UsageError(
                f"The checkpoint of step {step} is of another program: {why}. Nothing was loaded. "
                "Resume with the model and optimizer it was written by, or use another run_dir."
            )
        self._state.restore(tree)
        # Who resumes a halted run has decided to go on.
        ledger = from_plain(Ledger, log["ledger"])
        self._log.ledger = ledger.but(halted=False, streak=0) if ledger.halted else ledger
        self._log.history = History.from_plain(_numbers(log["history"]))
        if "limits" in log:  # older checkpoints have none: the first step then computes them anew
            self._log.limits_in_force = from_plain(RefusalLimits, log["limits"])
        self._bad_keys = set(log["bad_keys"])
        self._last_checkpoint = int(log["step"])
        self._program.dropped_terms = ledger.dropped_terms
        self._program.precision = _WIDER[self._narrow] if ledger.widened else self._narrow
        return int(log["step"]), int(log["batches_seen"])

    def recent_good(self, window: Window, steps: int = 3) -> list[Sequence[Any]]:
        """The micro-batches of a few good steps before this window, for the diagnosis to follow a remedy with."""
        bad = self._bad_keys | set(window.keys)
        size = max(self._program.accumulate, len(window))
        good = [
            t for t in self._batch_buffer.newest((steps + 1) * size + len(bad)) if t.key not in bad and not t.changed()
        ]
        if self._whole_windows:
            groups = by_step(good)[-steps:]
        else:
            good = good[-steps * size :]
            groups = [good[i : i + size] for i in range(0, len(good) - size + 1, size)]
        return [FetchedBatches(group) for group in groups]

    def past(self, window: Window, scheduler: Any) -> EarlierSteps | None:
        """The good snapshots and the applied steps since the oldest, for the diagnosis to go back to. Copies
        nothing."""
        if self._ring is None or self._consensus.size > 1:
            return None
        return earlier_steps_of(
            self._ring, self._batch_buffer, self._bad_keys | set(window.keys), scheduler, self._bad_at_start
        )

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
            return  # it is not the batch: it will be tried again from a good state
        good = {key for _, key in kept}
        for key in window.keys:
            if key not in good:
                self._bad_keys.add(key)
                with self._barrier("journal", None):
                    self._log.journal.quarantine(key, step=reading.step, cause=_first_code(reading))

    def lift_quarantine(self) -> None:
        """Where a trial has shown what holds: the batches that were refused and are fine with it are run again."""
        if self.rates.chosen_by is not None:
            self._bad_keys -= self.rates.chosen_by.sound

    def is_quarantined(self, keys: Iterable[str]) -> bool:
        return not self._bad_keys.isdisjoint(keys)

    def apply(self, decision: Decision) -> None:
        """Put the ladder's rungs in force: dropped terms and wider precision. LR and clip are read off the ledger."""
        self._program.dropped_terms = decision.dropped_terms
        self._program.precision = _WIDER[self._narrow] if decision.widened else self._narrow
        self._remedied = decision.rung > 0

    def capabilities(self) -> Capabilities:
        terms: tuple[str, ...] = ()
        if self._terms_add_up:
            terms = self._term_names
        good = self._ring is not None and self._ring.last_step >= 0
        return Capabilities(clip=self.can_clip, rollback=good, terms=terms, widen=self._narrow == "fp16")

    _term_names: tuple[str, ...] = ()

    def _note_terms(self, reading: Reading) -> None:
        """Terms can be dropped only if they are what the loss is made of: their sum is the loss on healthy steps."""
        if not reading.terms or self._program.dropped_terms:
            return
        if len(reading.terms) > 1:
            gap = abs(reading.loss - sum(reading.terms.values()))
            adds_up = gap <= 1e-3 * max(abs(reading.loss), 1e-12)
            self._terms_add_up = adds_up and self._terms_add_up is not False
            self._term_names = tuple(reading.terms)

    def roll_back(self, decision: Decision, outcome: Outcome | None) -> tuple[int | None, Decision]:
        """Restore the newest good snapshot and run the good batches since then again. Its step, and the decision,
        which says to halt where there is no good snapshot."""
        if self.rolling_back:
            raise RollBackAgain
        trial, self.rates.chosen_by = self.rates.chosen_by, None
        # After a divergence the batches that led there are left behind: they would lead there again, but for a rate
        # that was tried on them.
        as_before = trial is not None or not any(found.code == "SY203" for found in decision.findings)
        self._leave_out(trial.left_out if trial is not None else ())
        while True:
            if trial is not None:
                snapshot: Snapshot | None = trial.snapshot
            else:
                snapshot = self._snapshot_for(decision) if self._ring is not None else None
            if snapshot is None:
                reason = f"{decision.reason}; and no snapshot from before it is finite"
                return None, replace(decision, actions=(*decision.actions, Action.HALT), reason=reason)
            buffered = self._restore(snapshot, again=as_before)
            self.rolling_back = True
            at_first = set(non_finite(self._state.floating_tensors()))
            try:
                for group in by_step(buffered) if self._whole_windows else [[batch] for batch in buffered]:
                    if trial is not None:
                        self.rates.at_step(trial, group[0].step)
                    for batch in group:
                        # Refused batches had their own step numbers, so the numbers are others this time.
                        batch.step = self.loop.step
                    last = group[-1] is buffered[-1]
                    again = [(b.fetch(), b.key) for b in group]
                    self.loop.run_again(again, outcome if last else None, [b.rng for b in group])
                    if not last and self._consensus.size == 1:
                        self._leave_out_if_bad(group, at_first)
                return snapshot.step, decision
            except RollBackAgain:
                continue
            finally:
                self.rolling_back = False

    def _leave_out(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._bad_keys.add(key)
            with self._barrier("journal", None):
                self._log.journal.quarantine(key, step=self.loop.step, cause="loss_out_of_proportion")

    def _leave_out_if_bad(self, group: Sequence[BufferedBatch], at_first: set[str]) -> None:
        """Roll back once more, without these batches, if running them again left state non-finite: a running statistic,
        with a finite loss. One host read."""
        if at_first.issuperset(non_finite(self._state.floating_tensors())):
            return
        for batch in group:
            self._bad_keys.add(batch.key)
            with self._barrier("journal", None):
                self._log.journal.quarantine(batch.key, step=batch.step, cause="non_finite_buffer")
        raise RollBackAgain

    def _snapshot_for(self, decision: Decision) -> Snapshot | None:
        assert self._ring is not None
        best = [found.evidence.get("best_step") for found in decision.findings if found.code == "SY203"]
        onset = next((int(step) for step in best if step is not None), None)
        return self._consensus.good_snapshot(self._ring, onset)

    def _restore(self, snapshot: Snapshot, *, again: bool) -> list[BufferedBatch]:
        assert self._ring is not None
        self._state.restore(snapshot.tree)
        self._program.zero_grad()
        self._ring.discard_after(snapshot.step)
        with self._barrier("watch", None):
            self._log.history = History.from_plain(self._histories[snapshot.step])
            self._log.history.rewind()
        self.loop.reset_to(snapshot.step)
        self._batch_buffer.drop(self._bad_keys)
        buffered = self._consensus.buffered(self._batch_buffer.since(snapshot.step))
        if not again:
            self._batch_buffer.forget_from(snapshot.step)
            return []
        self.loop.update_check.be_careful((len(buffered) if buffered else 0) + _CAREFUL_STEPS)
        if buffered is None:
            self._log.show(
                "the batches since the snapshot are no longer kept, so the rollback could not run them again",
                kind="rollback_without_batches",
            )
            return []
        return buffered


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
