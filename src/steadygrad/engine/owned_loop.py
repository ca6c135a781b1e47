"""A training loop whose batches can be run here: the adapter behind `sg.Guard` and behind trainers that can be re-run.

Two speeds. Where the optimizer can refuse an update on the device, step t is committed at once under a device flag
and judged on the host just before step t+1 commits ("late"). If t turns out bad, its update was refused, so the
weights are still those from before t; t+1 is in flight with running statistics from after t, so those are restored and
t+1 is run again. Everywhere else the host reads first and commits then ("now").

Two drivers. `sg.Guard` hands batches to `feed`, which runs them. A trainer runs them itself the first time: it calls
`enter` before and `leave` after each, and `commit_outside` where it would step its optimizer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..detect.gradient_norms import LARGE, Gradients, look_at_infinite_norm
from ..detect.refusal_rule import must_refuse
from ..detect.tensors.kept_content import KeptContent
from ..detect.tensors.nested_tensors import tensors_in
from ..policy import Capabilities
from ..policy.escalation import Ledger
from ..records import Decision, Outcome, Reading
from ..records.rerun_flag import rerun
from .build_parts import Parts
from .config import GuardConfig
from .distributed.collectives import OtherRankFailed
from .engine import Engine, Step, Verdict
from .record.loop_skips import LoopSkips
from .recovery.diagnosis_requests import DiagnosisRequests, Diagnostician
from .recovery.divergence.rate_choice import diagnosis_of
from .recovery.open_windows import OpenWindows
from .recovery.rollback import Rollback
from .recovery.silent_faults import SilentFaults
from .recovery.update_check import UpdateCheck
from .state.forward_state import Entry
from .state.rng import RngState, put_rng, take_rng
from .step.numerics_findings import muted, urgent
from .step.plain_loop import PlainLoop
from .step.sampled_checks import AUDIT_EVERY, EARLY_FORWARDS
from .step.step_row import Row, reading_of
from .step.user_step import Terms, Update
from .step.window import PendingStep, Window, answer_for, left_over, with_room


class OwnedLoop:
    """Runs, commits, restores and re-runs the steps of one training, as its engine decides."""

    def __init__(self, parts: Parts, config: GuardConfig, diagnostician: Diagnostician, recovery: Rollback) -> None:
        self.parts, self.config, self.recovery = parts, config, recovery
        self.program, self.forward, self.log, self.barrier = parts.program, parts.forward, parts.log, parts.barrier
        self.consensus = parts.consensus
        self.engine = Engine(self, config.policy, parts.log, parts.barrier, parts.consensus)
        self._diagnostician = diagnostician
        self.update_check = UpdateCheck(
            parts.program.optimizers, parts.state, parts.consensus, on_device=config.self_check is not None
        )
        self.diagnoses = DiagnosisRequests(self, diagnostician, config)
        self.own_skips = LoopSkips(self)
        self.silent_faults = SilentFaults(self)
        self.open_windows = OpenWindows(self)
        self.step, self.batches_seen, self.window = 0, 0, Window()
        self.pending: PendingStep | None = None
        self.fallback: PlainLoop | None = None
        self.committed = False
        """Whether the update of the step under way has been made, so that a fault after it does not make it twice."""
        self.settle_for_readers: Callable[[], None] = self.settle
        """What an outcome calls when it is read; a facade puts its own, safer method here."""
        self.entered: Entry | None = None  # what was taken before the forward that is under way
        self.content: KeptContent | None = None  # of the micro-batch that is under way
        self.refusing: Step | None = None
        """Of several ranks: a step that all of them refuse."""
        self._recorded_by_all = False  # whether every rank has looked into that step, so that none waits for another
        self.rng_after: RngState | None = None  # to go on with after a refusal
        self._rng_now: RngState | None = None  # those at the refusal
        self.terms: Terms | None = None
        """The losses of the step under way, once its backward is done."""
        self._owed: list[Callable[[], Any]] = []
        """What follows an update that was made and is still to do: loss scale, gradients, schedule, moving average."""
        recovery.loop = self

    # -- one micro-batch

    def keep_state(self) -> None:
        """Before a window's first forward: look for new parameters, take a snapshot or a checkpoint where due."""
        if self.parts.parameters.refresh():
            self.settle_pending()
            self.update_check.forget()
            self.recovery.parameters_changed(self.step)
        if self.parts.checker.suspects:
            self.diagnoses.of_suspects()
        recovery = self.recovery
        if not recovery.anything_due(self.step):
            return
        divergence, snapshot = recovery.divergence_due(self.step), recovery.snapshot_due(self.step)
        more = recovery.rates.others_due()
        if not ((checkpoint := recovery.checkpoint_due(self.step)) or divergence or snapshot or more):
            return
        self.settle_pending()
        if len(self.window) or self.engine.halt is not None:
            return  # the step in flight was bad and left good micro-batches: wait for their window to end
        if divergence:
            recovery.check_divergence(self.engine, self.step)
        if more and recovery.rates.others_due():
            snapshot = recovery.rates.try_others(self.step) or snapshot
        if snapshot:
            recovery.take_snapshot(self.step)
        if checkpoint:
            recovery.save_checkpoint(self.step, self.batches_seen - 1)

    def feed(
        self, batch: Any, key: str, *, late: bool, original: Any = None, attempt: int = 0, last: bool | None = None
    ) -> Outcome:
        """One micro-batch, and the commit if it fills the window. `original` is what the user gave, the first time;
        `last` says that it does or does not fill the window, where counting cannot tell."""
        entry = self.enter()
        self.content = content = self.program.refilled.keep(tensors_in(batch))
        if not attempt:
            self.recovery.batch_buffer(self.step, batch, key, entry.rng, content)
        fills = len(self.window.batches) + 1 >= self.program.accumulate if last is None else last
        tell = None
        if fills and self.consensus.size > 1:
            tell = self.consensus.before_backward(self.step, self.batches_seen, self.window, self.barrier)
        self.terms = terms = self.program.micro(batch, original=original, before_backward=tell)
        if content.counted_writes:
            self.program.writes_batches = True
            self.log.tell_batch_written(key)
        if terms is None:
            self.consensus.needs_a_loss()
            return self.own_skips.by_loss_fn(batch, key, entry)
        self.leave(batch, key, terms, entry)
        if not fills:
            return Outcome(step=self.step, accumulating=True)
        outcome = Outcome(step=self.step, settle=self.settle_for_readers)
        if self.pending is not None and self.settle_pending(outcome):
            return outcome  # step t-1 was bad: this window has been run again and `outcome` resolved on the way
        gradients, row = self.measure(in_place=late)
        commit = self._commit_late if late else self._commit_now
        commit(Step(self.step, self.window, outcome, attempt), gradients, row)
        return outcome

    def enter(self) -> Entry:
        """Before a micro-batch's forward: take what it may move. Does not sync."""
        if not self.window.batches and not self.config.outside:
            self.window.left_over = left_over(self.program.parameters)
        self.entered = entry = self.forward.take()
        if self.step not in self.parts.checker.idle:
            self.parts.checker.before_forward(self.step)
        return entry

    def leave(self, batch: Any, key: str, terms: Terms, entry: Entry) -> None:
        """After a micro-batch's backward: it is part of the window. Does not sync."""
        self.forward.notice()
        self.forward.left()
        checker = self.parts.checker
        if checker.forwards < EARLY_FORWARDS or self.step % AUDIT_EVERY == 0:
            checker.after_forward(self.step, self.forward)
        self.window.add(batch, key, terms, entry, self.content)

    def measure(self, *, in_place: bool = False) -> tuple[Gradients | None, Row]:
        """The window's numbers, unscaled and unclipped, still on the device. Does not sync."""
        scale = None
        if self.program.scaler is not None:
            scale = self.program.scaler._scale
            if not self.config.outside:
                self.program.unscale()
        gradients = self.parts.probe.measure()
        if gradients is not None and self.config.outside and not self.program.unscaled:
            # The loop unscales in its own time; doing it here would make it fail there.
            factor = self.program.inverse_scale()
            gradients = replace(gradients, norms=gradients.norms * factor, total=gradients.total * factor)
        return gradients, self.parts.readout.pack(gradients, self.window.terms, scale, in_place=in_place)

    def commit_outside(
        self, gradients: Gradients | None, row: Row, update: Update, *, loss_seen: bool = True
    ) -> Outcome:
        """A trainer would step its optimizer here; `update` does so. One host read."""
        step = Step(self.step, self.window, Outcome(step=self.step), loss_seen=loss_seen)
        self._commit_now(step, gradients, row, update)
        return step.outcome

    def _commit_late(self, step: Step, gradients: Gradients | None, row: Row) -> None:
        """Commit under a device flag; the host learns the answer before the next commit. Does not sync."""
        parts, force = self.parts, self.log.ledger
        limits = self.log.limits(parts.updater.max_grad_norm)
        lr = parts.updater.rate(force)
        rule = parts.updater.rule(force, on_device=True) if gradients is not None else None
        refuses, also = self.config.policy.acts, self.silent_faults.flag(row)
        sealed = parts.device_check.seal(row, limits, refuses=refuses, rule=rule, also=also)
        self._update(gradients, sealed.flag, force, factor=sealed.factor)
        self.silent_faults.made(sealed.flag)
        self.window = Window()
        self.pending = PendingStep(step, sealed.row_transfer, row.layout, limits, lr, parts.gate.take_fresh())
        self.step += 1
        if parts.checker.sampling is not None:
            parts.checker.after_update()
        self._finish_update()

    def _commit_now(self, step: Step, gradients: Gradients | None, row: Row, update: Update | None = None) -> None:
        """Read first, commit then. One host read."""
        alone = self.consensus.size == 1
        limits = self.log.limits(self.parts.updater.max_grad_norm)
        values = row.read() if alone else self.consensus.read(row.numbers())
        lr = self.parts.updater.rate(self.log.ledger)
        reading = reading_of(values, row.layout, step=step.number, lr=lr, batch_key=step.window.key, limits=limits)
        try:
            if not alone or self.consensus.rank:
                reading = self.consensus.agree(reading, self.step, self.batches_seen, step.window, gradients)
        except OtherRankFailed as lost:
            self.barrier.note("guard", lost)
            self.fallback, self.window = self._plain_loop(), Window()
            self.fallback.take_over(gradients, lost.losses_finite, step.outcome)
            return
        if alone and reading.grad_norm == math.inf:
            reading = look_at_infinite_norm(reading, gradients, self.program.scale_left, clips=self.parts.updater.clips)
        if alone and self.config.policy.acts and self.silent_faults.handled(step, reading):
            return
        self.window = Window()
        self.step += 1
        self.refusing, self._recorded_by_all = None if alone or not must_refuse(reading) else step, False
        force = self.log.ledger  # a remedy that this step ends is in force until the next, as when late
        step.gradients = gradients
        verdict = self.engine.judge(step, reading)
        if not verdict.applies:
            return
        fed = gradients.read_as(reading.grad_norm) if gradients is not None else ()
        copies, large = alone and self.config.policy.acts, reading.grad_norm > LARGE  # several ranks had to agree
        undo = self.update_check.before(fed, may_copy=copies, hold_rate=force.rate_held, large=large)
        self._update(gradients, None, force, update)
        if self.parts.checker.sampling is not None:
            self.parts.checker.after_update()
        bad = self.update_check.after(fed, undo) if self.config.policy.acts else None
        if bad is not None:
            self._owed.clear()
            self._undo_update(step, verdict.reading, bad, undo)
            return
        self._finish_update()
        self.engine.conclude(step, verdict)

    def _undo_update(self, step: Step, reading: Reading, bad: dict[str, Any], undo: Any) -> None:
        """The update made something non-finite out of finite gradients: undo it to the bit, or roll back."""
        if undo is not None:
            self.parts.state.restore(undo)
        if step.gradients is not None:
            step.gradients.tensors, step.gradients = [], None
        self.engine.refuse(step, replace(reading, **bad))

    def _update(
        self, gradients: Gradients | None, flag: torch.Tensor | None, force: Ledger,
        update: Update | None = None, factor: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        self.recovery.before_update()
        if self.parts.checker.sampling is not None:
            self.parts.checker.before_update()
        owed = [self.program.zero_grad] if update is None else []
        if owed and self.program.scaler is not None:
            owed.insert(0, self.program.update_scale)
        owed += self.parts.followers.turns(None) if owed and flag is None and self.parts.followers.present else []
        if update is None:
            self.parts.updater(gradients, flag, force, factor)
        else:
            self.parts.updater.outside(update, force)
        self.entered, self.committed, self._owed = None, True, owed

    def _finish_update(self) -> None:
        """What comes after an update that was made. What a fault leaves of it is done when the guard stands down."""
        while self._owed:
            self._owed[0]()
            self._owed.pop(0)

    # -- settlement

    def settle(self) -> None:
        """Wait for the last step's answer and act on it; leave no bad micro-batch in an unfinished window."""
        if self.pending is not None or len(self.window):
            with self.parts.mode.again():
                if self.pending is not None:
                    self.settle_pending()
                if len(self.window) and not self.config.outside and self.consensus.size == 1:
                    self.open_windows.tidy()  # not with several ranks: one of them alone may be asking
        self.diagnoses.of_suspects()

    def settle_pending(self, outcome: Outcome | None = None) -> bool:
        """Judge the step in flight, if there is one. True if it was bad: then all behind it has been run again."""
        pending, self.pending = self.pending, None
        if pending is None:
            return False
        step, values = pending.step, pending.row_transfer.values()
        reading = reading_of(
            values, pending.layout, step=step.number, lr=pending.lr, batch_key=step.window.key, limits=pending.limits,
            refused=values[-1] != 0.0,
        )  # fmt: skip
        step.next_outcome = outcome
        if reading.refused:
            self.open_windows.put_behind(step)
            step.after = self.window.entry
            self.parts.gate.forget_fresh(pending.fresh)
            self.program.zero_grad()
            self.window = Window()
            if self.silent_faults.handled_late(step, reading):
                return True
        verdict = self.engine.judge(step, reading, made=True)
        if not verdict.applies:
            return True
        self.parts.followers.advance(self.window.entry)
        self.engine.conclude(step, verdict)
        return False

    # -- what the engine asks

    def capabilities(self, reading: Reading) -> Capabilities:
        return self.recovery.capabilities()

    def withhold(self, step: Step, reading: Reading) -> Reading:
        """Restore what the refused window moved, and look closer: what was bad, and which micro-batches were good."""
        self.parts.checker.after_refusal()
        assert step.window.entry is not None
        self.recovery.as_fed(step.number, step.window)
        self.rng_after = self.forward.rng_without(step.window.entry.place)
        self.open_windows.looked_at = step.window.entry
        after = step.after or self.forward.take()
        self._rng_now = take_rng()
        with muted(), rerun():
            reading, step.kept = self.recovery.second_look.at(reading, step.window, step.gradients)
            step.gradients = None
            if reading.scale_to_blame:
                # An overflow of the loss scale is part of a healthy run: all else is as the plain loop has it.
                self.rng_after = after.rng
                self.recovery.second_look.leave_as(after)
            ours = self.consensus.size == 1 and not self.config.outside and self.config.policy.acts
            other_numbers = self.parts.noise.at_fault(reading, step.window) if ours else None
        if other_numbers is not None:
            step.kept, step.again, self.rng_after = step.window.fed, True, other_numbers
        self.open_windows.looked_at = None
        return reading

    def quarantine(self, step: Step, reading: Reading) -> None:
        self.recovery.quarantine(reading, step.window, step.kept)

    def diagnose(self, step: Step, reading: Reading, decision: Decision) -> None:
        if not step.window.batches and (trial := self.recovery.rates.chosen_by) is not None:
            self.log.enter_diagnosis(diagnosis_of(trial))
            return
        self.diagnoses.of_refusal(step.window, reading, decision, together=self.refusing is step)

    def choose_rate(self, decision: Decision) -> Decision:
        return decision if self.recovery.rolling_back else self.recovery.rates.choose(decision)

    def roll_back(self, step: Step, decision: Decision) -> Decision:
        self._go_on_together()
        self.refusing = None  # what fails from here on, on one rank, ends all of them
        self.recovery.lift_quarantine()
        again = not self.recovery.is_quarantined(step.window.keys)  # then it is run again with the others
        rng = (self._rng_now if again else self.rng_after) or take_rng()
        if step.window.entry is not None:
            self.forward.forget_since(step.window.entry.place)
        self.recovery.apply(decision)
        to, decision = self.recovery.roll_back(decision, step.next_outcome)
        step.outcome.rolled_back_to = to
        if to is not None and not self.recovery.rolling_back:
            put_rng(rng)
        return decision

    def proceed(self, step: Step, decision: Decision) -> None:
        """Run again what is good of a refused step, and what came behind it, with what was decided in force."""
        self._go_on_together()
        self.recovery.apply(decision)
        assert step.window.entry is not None
        self.forward.forget_since(step.window.entry.place)
        if self.rng_after is not None:
            put_rng(self.rng_after)
        self.rng_after = self._rng_now = None
        kept, behind = (step.kept, step.behind) if step.again else ([], [*step.kept, *step.behind])
        step.window, step.after = Window(step.window.entry), None  # copies of its batches may lie on the device
        self.run_again(kept, step.outcome)  # its batch is applied after all, and its outcome says so
        self.run_again(behind, step.next_outcome)

    def applied(self, step: Step, verdict: Verdict) -> None:
        if self.parts.checker.expects:
            self.parts.checker.after_step(verdict.reading)
        self.recovery.note(verdict.reading, verdict.decision)
        if self.config.self_check is not None:
            self.silent_faults.applied(verdict.reading)
        if (entry := step.window.entry) is not None and entry.hot:
            self.forward.release(entry)

    def _go_on_together(self) -> None:
        if self.consensus.size > 1:
            self.consensus.go_on_together()
            self._recorded_by_all = True

    def halting(self, step: Step) -> None:
        if not self._recorded_by_all:
            self._go_on_together()
        if self.rng_after is not None:
            put_rng(self.rng_after)
        self.recovery.save_before_halt(self.step, self.batches_seen - len(step.behind))

    # -- small things

    def run_again(
        self, batches: Sequence[tuple[Any, str]], outcome: Outcome | None = None, rngs: Sequence[RngState | None] = ()
    ) -> None:
        """Feed batches again, each judged before it is applied; the last one's outcome answers for `outcome`. In a
        trainer's loop they are one whole window. `rngs` are the random states they begin with, where known."""
        answer = None
        for number, (batch, key) in enumerate(batches):
            if self.engine.halt is not None:
                break
            if number < len(rngs) and (rng := rngs[number]) is not None:
                put_rng(rng)
            with rerun():
                last = number == len(batches) - 1 if self.config.outside else None
                again = functools.partial(self.feed, batch, key, late=False, attempt=1, last=last)
                # With gradients of others in the window, those of a half-made backward could not be taken out.
                answer = again() if len(self.window) else with_room(again, self.open_windows.undo_forward)
        if outcome is not None and answer is not None:
            answer_for(outcome, answer)

    def preserve(self, objects: tuple[Any, ...]) -> None:
        self.program.beside = objects

    def clips_to(self, max_grad_norm: float | None) -> None:
        """A trainer clips to this; learned when it first does."""
        if max_grad_norm != self.parts.updater.max_grad_norm:
            self.parts.updater.max_grad_norm = self._diagnostician.max_grad_norm = max_grad_norm
            self.recovery.can_clip = max_grad_norm is not None

    def release(self) -> None:
        """Leave no hook on the optimizers and the model, and keep no copy of their state."""
        self.parts.checker.close()
        for part in (self.parts.gate, self.update_check, self.own_skips, self.recovery):
            part.release()
        self.window, self.entered = Window(), None

    def begin(self) -> None:
        """A step begins: nothing of it has been applied and nothing has to be restored."""
        self.entered, self.refusing, self.rng_after, self._rng_now, self._owed = None, None, None, None, []

    def reset_to(self, step: int) -> None:
        """A rollback has restored the state before this step."""
        self.step, self.window, self.pending = step, Window(), None

    def late(self) -> bool:
        """Whether the next commit can be settled one step late."""
        settle = self.config.settle
        if settle == "now" or self.config.outside or self.consensus.size > 1:
            return False  # several ranks judge together before any of them commits
        if settle == "auto" and self.program.device.type == "cpu":
            return False  # reading a CPU tensor costs nothing, so there is nothing to gain from being late
        checked = self.silent_faults.self_check.due(self.step)
        if urgent() or checked or self.update_check.careful or self.update_check.wants_host:
            return False
        return self.parts.updater.refuses_on_device()

    def _plain_loop(self) -> PlainLoop:
        clip, place = self.parts.updater.max_grad_norm, lambda: (self.step, self.batches_seen)
        return PlainLoop(self.program, clip, self.parts.followers, self.consensus, place)

    def stand_down(self, fault: Exception) -> PlainLoop:
        """The guard itself failed: go on as a plain loop that still refuses non-finite updates, and report it. With
        several ranks all of them do, or all of them stop: see `RankConsensus.broken`."""
        self.barrier.note("guard", fault)
        begun, apart = self.program.began, self.consensus.size > 1 and not self.committed
        refusing, self.refusing = self.refusing if apart and not self.config.outside else None, None
        half_way = apart and refusing is None and (self.terms is not None or self.program.answer is not None)
        whole = self.program.accumulate == 1 and (not begun or half_way or self.committed)
        if refusing is not None and not self._recorded_by_all:
            self.consensus.announce_loss(fault)
        elif refusing is None or refusing.kept:
            self.consensus.broken(fault, in_step=not self.config.outside and (whole or not (begun or len(self.window))))
        self.fallback = self._plain_loop()
        if half_way:
            return self.fallback  # the other ranks are as far as this one: the step is finished from here
        pending, self.pending = self.pending, None
        window, self.window = self.window, Window()
        entry = (refusing.window.entry if refusing is not None else window.entry) or self.entered
        rng = self.forward.rng_without(entry.place) if entry is not None else None
        with self.barrier("standing_down", None):
            if pending is not None and pending.row_transfer.values()[-1] != 0.0:
                self.parts.gate.forget_fresh(pending.fresh)
                entry = pending.step.window.entry
            elif pending is not None:
                self._owed += self.parts.followers.turns(window.entry or self.entered)
        self._finish_update()
        self.program.forget()
        with self.barrier("standing_down", None):
            if entry is not None:
                self.forward.restore(entry)
                if rng is not None:
                    put_rng(rng)
        return self.fallback
