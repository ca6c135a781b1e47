"""The engine: everything that happens around a training step, whoever runs its forward and backward the first time.

Two speeds. Where the optimizer can refuse an update on the device, step t is committed at once under a device flag
and settled on the host just before step t+1 commits ("late"). If t turns out bad, its update was refused, so the
weights are still those from before t; t+1 is in flight with random numbers and running statistics from after t, so
those are put back and t+1 is run again. Everywhere else the host reads first and commits then ("now").

Two drivers. The guard hands batches to `feed`, which runs them. A loop that somebody else owns runs them itself,
calls `enter` before and `leave` after each, and `commit_outside` where it would step its optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..detect.gradients import Gradients
from ..errors import TrainingHalted
from ..policy import Policy
from ..policy.escalation import Ledger
from ..records import Action, Decision, Finding, Outcome, Reading
from .checkpoints import CheckpointStore
from .fallback import PlainLoop
from .flight import Flight, Window, answer_for, left_over, passed_over
from .forward_state import Entry
from .manner import Clinic, Manner
from .noise import Noise
from .notify import Notifier
from .parts import Parts
from .posted import is_fatal, muted, urgent, with_posted
from .program import Terms
from .ranks_council import GuardLost
from .readout import Row, must_refuse, reading_of
from .recovery import Recovery, Verbs
from .rng import put_rng
from .silent_trouble import SilentTrouble
from .snapshots import SnapshotRing
from .tape import versions_of
from .unease import Unease

_EXPLAINED_CRASHES = 3


class Engine:
    """Commits, settles, refuses and recovers. One per guard."""

    def __init__(
        self,
        parts: Parts,
        policy: Policy,
        clinic: Clinic,
        manner: Manner,
        *,
        ring: SnapshotRing | None,
        store: CheckpointStore | None,
        run_path: Path | None,
    ) -> None:
        self.policy, self.parts = policy, parts
        self.program, self.forward, self.books, self.shield = parts.program, parts.forward, parts.books, parts.shield
        self._clerk, self._mode, self._probe, self._readout = parts.clerk, parts.mode, parts.probe, parts.readout
        self._gate, self._updater, self._followers = parts.gate, parts.updater, parts.followers
        self._sealer = parts.sealer
        self._unease = Unease(parts.program.optimizers, versions=parts.program.device.type == "cpu")
        self._clinic, self._manner, self._run_path = clinic, manner, run_path
        self.council = parts.council
        self._silent = SilentTrouble(self, clinic, manner)
        verbs = Verbs(
            run_again=self.run_again, reset_to=self._reset_to, halt=self._set_halt, step_now=lambda: self.step
        )
        self.recovery = Recovery(
            verbs, program=parts.program, forward=parts.forward, state=parts.state, books=parts.books,
            shield=parts.shield, ring=ring, store=store, can_clip=manner.max_grad_norm is not None,
            whole_windows=manner.outside, council=parts.council,
        )  # fmt: skip
        self._noise = Noise(parts.program, parts.forward, parts.books, parts.shield)
        self.step = self.batches_seen = 0
        self.window = Window()
        self.pending: Flight | None = None
        self.halt: Decision | None = None
        self.fallback: PlainLoop | None = None
        self.landed = False
        """Whether the update of the step under way has been made, so that a fault after it does not make it twice."""
        self.settle_for_readers: Callable[[], None] = self.settle
        """What an outcome calls when somebody reads it; a facade puts its own, safer door here."""
        self._before_forward: Entry | None = None
        self._ran = False
        self._crashes = 0

    # -- one micro-batch

    def keep_state(self) -> None:
        """Snapshot and checkpoint where due, of a settled state, before forward."""
        self._silent.look()
        if not (self.recovery.snapshot_due(self.step) or self.recovery.checkpoint_due(self.step)):
            return
        if self.pending is not None:
            self.settle_pending(())
        if len(self.window) or self.halt is not None:
            return  # the step in flight was bad and left good micro-batches: wait for their window to end
        if self.recovery.snapshot_due(self.step):
            self.recovery.take_snapshot(self.step)
        if self.recovery.checkpoint_due(self.step):
            self.recovery.save_checkpoint(self.step, self.batches_seen - 1)

    def feed(
        self, batch: Any, key: str, *, late: bool, original: Any = None, attempt: int = 0, last: bool | None = None
    ) -> Outcome:
        """One micro-batch, and the commit if it fills the window. `original` is what the user gave, the first time.

        `last` says that it does or does not fill the window, where counting cannot tell.
        """
        entry = self.enter()
        versions = versions_of(batch)
        fills = len(self.window) + 1 >= self.program.accumulate if last is None else last
        tell = self.council.before_backward(self.step, self.batches_seen, self.window) if fills else None
        self._ran = True
        terms = self.program.micro(batch, original=original, before_backward=tell)
        if versions != versions_of(batch):
            self.program.writes_batches = True
            self.books.tell_batch_written(key)
        if terms is None:
            self.council.needs_a_loss()
            self.forward.notice()
            self._clerk.after_forward(self.step, self.forward)
            self.forward.restore(entry)
            return passed_over(self.step)
        self.leave(batch, key, terms, entry)
        if not fills:
            return Outcome(step=self.step, accumulating=True)
        outcome = Outcome(step=self.step, settle=self.settle_for_readers)
        gradients, row = self.measure(in_place=late)
        commit = self._commit_late if late else self._commit_now
        commit(outcome, gradients, row, attempt)
        return outcome

    def enter(self) -> Entry:
        """Before a micro-batch's forward: take what it may move. Does not sync."""
        if not len(self.window) and not self._manner.outside:
            self.window.left_over = left_over(self.program.parameters)
        self._before_forward = entry = self.forward.take()
        self._clerk.before_forward(self.step)
        return entry

    def leave(self, batch: Any, key: str, terms: Terms, entry: Entry) -> None:
        """After a micro-batch's backward: it is part of the window. Does not sync."""
        self.forward.notice()
        self._clerk.after_forward(self.step, self.forward)
        self.window.add(batch, key, terms, entry)

    def note_mode(self) -> None:
        """Remember which modules are training, in case what is open must be run again under other modes."""
        if self.pending is not None or len(self.window):
            self._mode.note()

    def measure(self, *, in_place: bool = False) -> tuple[Gradients | None, Row]:
        """The window's numbers, unscaled and unclipped, still on the device. Does not sync."""
        scale = self.program.scaler._scale if self.program.scaler is not None else None
        if not self._manner.outside:
            self.program.unscale()
        gradients = self._probe.measure()
        if gradients is not None and self._manner.outside and not self.program.unscaled:
            # The loop unscales in its own time; doing it here would make it fail there.
            factor = self.program.inverse_scale()
            gradients = replace(gradients, norms=gradients.norms * factor, total=gradients.total * factor)
        return gradients, self._readout.pack(gradients, self.window.terms, scale, in_place=in_place)

    # -- commit

    def commit_outside(self, gradients: Gradients | None, row: Row, update: Callable[[], Any]) -> Outcome:
        """The owner of the loop would step its optimizer here; `update` does so. One host read."""
        outcome = Outcome(step=self.step)
        self._commit_now(outcome, gradients, row, 0, update)
        return outcome

    def _commit_late(self, outcome: Outcome, gradients: Gradients | None, row: Row, attempt: int) -> None:
        """Commit under a device flag; the host learns the answer before the next commit. Does not sync."""
        if self.pending is not None and self.settle_pending(self.window.fed, outcome):
            return  # step t-1 was bad: this window has been run again and `outcome` resolved on the way
        limits = self.books.limits(self._manner.max_grad_norm)
        lr, force = self._updater.rate(self.books.ledger), self.books.ledger
        rule = self._updater.rule(force, on_device=True) if gradients is not None else None
        sealed = self._sealer.seal(row, limits, refuses=self.policy.acts, rule=rule)
        self._update(gradients, sealed.flag, force, factor=sealed.factor)
        self.program.update_scale()
        self.program.zero_grad()
        window, self.window = self.window, Window()
        self.pending = Flight(
            self.step, window, outcome, sealed.seat, row.layout, limits, lr, self._gate.take_fresh(), attempt
        )  # fmt: skip
        self.step += 1

    def _commit_now(
        self, outcome: Outcome, gradients: Gradients | None, row: Row, attempt: int,
        update: Callable[[], Any] | None = None,
    ) -> None:  # fmt: skip
        """Read first, commit then. One host read."""
        values = row.numbers().tolist()
        limits = self.books.limits(self._manner.max_grad_norm)
        lr = self._updater.rate(self.books.ledger)
        reading = reading_of(values, row.layout, step=self.step, lr=lr, batch_key=self.window.key, limits=limits)
        try:
            reading = self.council.agree(reading, self.step, self.batches_seen, self.window, gradients)
        except GuardLost as lost:
            self.shield.note("guard", lost)
            self.fallback, self.window = self._plain_loop(), Window()
            self.fallback.take_over(gradients, lost.losses_finite, outcome)
            return
        reading = with_posted(reading, alone=self.council.size == 1)
        findings = self.books.judge(reading)
        window, self.window = self.window, Window()
        self.step += 1
        if self.policy.acts and (must_refuse(reading) or is_fatal(reading.posted)):
            self._refuse(reading, window, outcome, attempt, gradients)
            return
        force = self.books.ledger  # a remedy that this very step takes back is in force until the next, as when late
        decision = self._decide(reading, findings)
        fed = gradients.indices if gradients is not None else ()
        alone = self.council.size == 1 and not self._manner.outside and self.policy.acts
        undo = self.recovery.careful_copy(uneasy=alone and self._unease.due(fed))
        self._update(gradients, None, force, update)
        self._unease.note(fed)
        if undo is not None and (bad := self.recovery.poisoned_by_update(undo, window)):
            self._refuse(replace(reading, **bad), window, outcome, attempt, None)
            return
        if update is None:
            self.program.update_scale()
            self.program.zero_grad()
        self._conclude(reading, decision, outcome, window, attempt, followers=update is None)

    def _update(
        self, gradients: Gradients | None, flag: torch.Tensor | None, force: Ledger,
        update: Callable[[], Any] | None = None, factor: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        self.recovery.before_update()
        self._clerk.before_update()
        if update is None:
            self._updater(gradients, flag, force, factor)
        else:
            self._updater.outside(update, force)
        self._before_forward, self.landed = None, True
        self._clerk.after_update()

    # -- settlement

    def settle(self) -> None:
        """Wait for the last step's answer and act on it; leave no bad micro-batch in an unfinished window."""
        if self.pending is not None or len(self.window):
            with self._mode.again():
                if self.pending is not None:
                    self.settle_pending(self.window.fed)
                if len(self.window) and not self._manner.outside and self.council.size == 1:
                    self._tidy_window()  # not with several ranks: one of them alone may be asking
        self._silent.look()

    def _tidy_window(self) -> None:
        """Somebody is about to look at the model with a window unfinished: a bad micro-batch in it must not show."""
        window = self.window
        kept = self.recovery.good_part(window)
        if len(kept) < len(window):
            self.window = Window()
            out = window.without({key for _, key in kept})
            reading, decision = self.books.leave_out(self.step, out)
            self._call_the_clinic(reading, decision, out)
            self.books.announce()
            self.run_again(kept)

    def settle_pending(self, behind: Sequence[tuple[Any, str]], outcome: Outcome | None = None) -> bool:
        """Judge the step in flight. True if it was bad: then all `behind` it has been run again, `outcome` theirs."""
        flight, self.pending = self.pending, None
        assert flight is not None
        values = flight.seat.values()
        reading = reading_of(
            values, flight.layout, step=flight.step, lr=flight.lr, batch_key=flight.window.key, limits=flight.limits,
            refused=values[-1] != 0.0,
        )  # fmt: skip
        if not urgent():  # what is fatal is for the update that comes
            reading = with_posted(reading, alone=False)
        findings = self.books.judge(reading)
        if not reading.refused:
            decision = self._decide(reading, findings)
            return self._conclude(reading, decision, flight.outcome, flight.window, flight.attempt, behind, outcome)
        self._gate.forget_fresh(flight.fresh)
        self.program.zero_grad()
        self.window = Window()
        self._refuse(reading, flight.window, flight.outcome, flight.attempt, None, behind, outcome)
        return True

    def _conclude(
        self, reading: Reading, decision: Decision, outcome: Outcome, window: Window, attempt: int,
        behind: Sequence[tuple[Any, str]] = (), next_outcome: Outcome | None = None, *, followers: bool = True,
    ) -> bool:  # fmt: skip
        """A landed update: let schedule, EMA and books advance. True if the decision was to roll back."""
        if followers:
            self._followers.advance(self.window.entry)
        rolled_back = Action.ROLLBACK in decision.actions
        self.books.enter(reading, decision, applied=not rolled_back, attempt=attempt)
        self._clerk.after_step(reading)
        self.recovery.apply(decision)
        self.recovery.note_terms(reading)
        if rolled_back:
            outcome.rolled_back_to = self.recovery.roll_back(decision, next_outcome)
        outcome.resolve(decision=decision, reading=reading, applied=not rolled_back)
        if window.entry is not None:
            self.forward.release(window.entry)
        return rolled_back

    # -- refusal

    def _refuse(
        self, reading: Reading, window: Window, outcome: Outcome, attempt: int, gradients: Gradients | None,
        behind: Sequence[tuple[Any, str]] = (), next_outcome: Outcome | None = None,
    ) -> None:  # fmt: skip
        """A refused update: leave no trace of its batch, remember it, and run what came behind it again."""
        self._clerk.after_refusal()
        ours_alone = self.council.size == 1 and not self._manner.outside and self.policy.acts
        with muted():
            hard = ours_alone and not reading.undone and self.recovery.is_only_hard(reading, window)
        if hard:
            self.run_again(window.fed, outcome)  # it lands after all, and its outcome says so
            self.run_again(behind, next_outcome)
            return
        with muted():
            reading, kept = self.recovery.second_look.at(reading, window, gradients)
            other_numbers = self._noise.to_blame(reading, window) if ours_alone else None
        kept = kept if other_numbers is None else window.fed
        findings = self.books.judge(reading)
        decision = self._decide(reading, findings)
        self.books.enter(reading, decision, applied=False, attempt=attempt)
        self.recovery.quarantine(reading, window, kept)
        if not reading.scale_to_blame:
            self._call_the_clinic(reading, decision, window)
            self.books.announce()
        self.recovery.apply(decision)
        outcome.resolve(decision=decision, reading=reading, applied=False)
        if Action.HALT in decision.actions:
            self.halt = decision
            self.recovery.save_before_halt(self.step, self.batches_seen - len(behind))
            return
        if Action.ROLLBACK in decision.actions:
            outcome.rolled_back_to = self.recovery.roll_back(decision, next_outcome)
            return
        if other_numbers is not None:
            put_rng(other_numbers)
            self.run_again(kept, outcome)  # its batch lands after all, and its outcome says so
            kept = []
        self.run_again([*kept, *behind], next_outcome)

    def _call_the_clinic(self, reading: Reading, decision: Decision, window: Window) -> None:
        """Find out why, while the weights are still those from before the step. Ends as if nothing had happened."""
        if not window.can_run_again:
            return
        if self.books.capsule_due(self._clinic.capsule, reading):
            with self.shield("clinic", None):
                self._clinic.keep_capsule(window, decision.findings)
        if is_fatal(reading.posted) and not must_refuse(reading):
            return  # it was generation that went wrong, and this step cannot show how
        depth = self.books.diagnosis_due(self._manner.diagnose, caught=reading.undone)
        if depth is not None:
            with self.shield("clinic", None), muted():
                others = self.recovery.recent_good(window)
                past = self.recovery.past(window, self._followers.scheduler)
                found = self._clinic.examine(window, reading.step, decision.findings, others, depth=depth, past=past)
                self.books.enter_diagnosis(found)

    def explain_crash(self, error: BaseException, batch: Any, key: str) -> None:
        """The user's code raised in forward: if a NaN of this very step is behind it, keep an incident that names it.

        Looks only where a bad tensor lies about, and then runs the forward again. The exception goes on its way.
        """
        entry = self.window.entry or self._before_forward
        depth = {"auto": "full", "origin": "origin"}.get(self._manner.diagnose)
        if depth is None or entry is None or self.council.size > 1 or self._crashes >= _EXPLAINED_CRASHES:
            return
        with self.shield("clinic", None):
            window = Window()
            for each, name in [*self.window.fed, (batch, key)]:
                window.add(each, name, {}, entry)
            found = self._clinic.explain(window, self.step, error, depth=depth)
            if found is not None:
                self._crashes += 1
                self.books.enter_crash(self.step, key, error)
                self.books.enter_diagnosis(found)

    def run_again(self, batches: Sequence[tuple[Any, str]], outcome: Outcome | None = None) -> None:
        """Feed batches again, each judged before it lands; the last one's outcome answers for `outcome`.

        In somebody else's loop they are one whole window.
        """
        answer = None
        for number, (batch, key) in enumerate(batches):
            if self.halt is not None:
                break
            last = number == len(batches) - 1 if self._manner.outside else None
            answer = self.feed(batch, key, late=False, attempt=1, last=last)
        if outcome is not None and answer is not None:
            answer_for(outcome, answer)

    # -- small things

    def _decide(self, reading: Reading, findings: Sequence[Finding]) -> Decision:
        decision = self.books.decide(reading, self.recovery.doubt(reading, findings), self.recovery.capabilities())
        self.council.note(decision)
        return decision

    def look_around(self) -> None:
        """Look once at model and optimizers before the first step, and say what looks wrong."""
        self._clerk.inspect_setup()

    def clips_to(self, max_grad_norm: float | None) -> None:
        """The owner of an outside loop clips to this; learned when it first does."""
        if max_grad_norm != self._manner.max_grad_norm:
            self._manner = replace(self._manner, max_grad_norm=max_grad_norm)
            self._updater.max_grad_norm = self._clinic.max_grad_norm = max_grad_norm
            self.recovery.can_clip = max_grad_norm is not None

    def begin(self) -> None:
        """A step begins: nothing of it has landed and nothing has to be put back."""
        self._before_forward, self.landed, self._ran = None, False, False

    def _plain_loop(self) -> PlainLoop:
        return PlainLoop(
            self.program, self.program.optimizers, self._manner.max_grad_norm, self._followers.scheduler,
            self._followers.ema_update, self.council, lambda: (self.step, self.batches_seen),
        )  # fmt: skip

    def _reset_to(self, step: int) -> None:
        """A rollback has restored the state before this step."""
        self.step, self.window, self.pending = step, Window(), None

    def _set_halt(self, decision: Decision) -> None:
        self.halt = decision

    def late(self) -> bool:
        """Whether the next commit can be settled one step late."""
        settle = self._manner.settle
        careful = self.recovery.careful or (self.council.size == 1 and self._unease.wants_host)
        if settle == "now" or urgent() or careful or self._manner.outside or self.council.size > 1:
            return False  # several ranks judge together before any of them commits
        if settle == "auto" and self.program.device.type == "cpu":
            return False  # reading a CPU tensor costs nothing, so there is nothing to gain from being late
        return self._updater.refuses_on_device()

    def close(self) -> None:
        """Wait a little for messages under way and close the journal."""
        with self.shield("notify", None):
            if isinstance(self.books.on_incident, Notifier):
                self.books.on_incident.close()
        with self.shield("journal", None):
            self.books.journal.close()

    def halted(self) -> TrainingHalted:
        assert self.halt is not None
        return TrainingHalted.at(self.halt.step, self.halt.reason, self._run_path)

    def abandon_window(self) -> None:
        """The user's code raised, or Ctrl-C came: forget the unfinished window, leave no trace of it."""
        window, self.window = self.window, Window()
        self.council.abandon()
        with self.shield("forward_state", None):
            self.program.forget()
            if (entry := window.entry or self._before_forward) is not None:
                self.forward.restore(entry)

    def stand_down(self, fault: Exception) -> PlainLoop:
        """The guard itself broke: go on as a plain loop that still refuses non-finite updates, loudly.

        With several ranks all of them do, or all of them stop: see `Council.broken`.
        """
        self.shield.note("guard", fault)
        self.council.broken(fault, early=not self._ran and not len(self.window) and not self._manner.outside)
        self.fallback = self._plain_loop()
        flight, self.pending = self.pending, None
        entry, self.window = self.window.entry or self._before_forward, Window()
        self.program.forget()
        with self.shield("standing_down", None):
            if flight is not None and flight.seat.values()[-1] != 0.0:
                self._gate.forget_fresh(flight.fresh)
                entry = flight.window.entry
            elif flight is not None:
                self._followers.advance(self.window.entry)
        with self.shield("standing_down", None):
            if entry is not None:
                self.forward.restore(entry)
        return self.fallback
