"""Guard: owns one training step and wires the rooms together.

Two speeds. Where the optimizer can refuse an update on the device, step t is committed at once under a device flag
and settled on the host just before step t+1 commits ("late"). If t turns out bad, its update was refused, so the
weights are still those from before t; t+1 is in flight with random numbers and running statistics from after t, so
those are put back and t+1 is run again. Everywhere else the host reads first and commits then ("now").
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .act import setup
from .act.fallback import PlainLoop
from .act.flight import Flight, Window, answer_for, passed_over
from .act.forward_state import Entry
from .act.ladder import Ledger
from .act.parts import assemble
from .act.policy import Policy
from .act.program import TheirFault
from .act.readout import Row, must_refuse, reading_of
from .act.recovery import Recovery, Verbs
from .act.tape import pristine, versions_of
from .errors import ClosedError, SteadyError, TrainingHalted
from .journal import Journal
from .records import Action, Decision, Finding, Incident, Outcome, Reading
from .watch.gradients import Gradients

LossFn = Callable[[nn.Module, Any], Any]


class Guard:
    """A training step that cannot be poisoned.

    Args:
        model: the module being trained (compiled ones too).
        optimizer: a torch optimizer, or several. Made with `fused=True` it can refuse an update on the device.
        loss_fn: `loss_fn(model, batch)` returns a scalar, a mapping of named terms with "loss", or None to skip.
        max_grad_norm: clip by global norm; None measures and does not clip.
        scheduler: a learning-rate scheduler; it advances on landed updates only.
        run_dir: where the journal goes; None keeps it in memory.
        policy: "observe", "balanced", "ultra_conservative", or a Policy.
        precision: "fp32", "bf16" or "fp16"; the guard enters autocast and, for fp16, scales the loss.
        scaler: your own GradScaler instead.
        accumulate: micro-batches per update.
        ema: anything with `update_parameters(model)` or `update()`, or a callable; advances on landed updates only.
        clip: "exact" (bit-identical to torch's clip) or "folded" (inside the fused optimizer, cheaper).
        settle: "auto", "late" (one step late; needs a fused optimizer) or "now" (one host read a step).
        snapshots: "auto", "host", "device" or "off": where the ring of last good states lives.
        checkpoint_every: steps between checkpoints in `run_dir/snapshots`; None writes none.
        resume: continue from the last good checkpoint in `run_dir`, if there is one.
        diagnose: "auto" (the first incidents of a kind, on the spot), "origin" (without trying remedies), or "off".
        capsule: what `steady replay` needs of the first incident of each kind, in run_dir: "keep" (the state and the
            batches, as they are), "redact" (of batches only shapes and dtypes), or "off".
        capsule_bytes: the most a capsule may take; past it weights are left out.
        batch_key: `batch_key(batch)` names a batch in the journal; by default batches are counted.
        extra_state: name -> (take, put) for state the guard cannot see, such as your own generator.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        loss_fn: LossFn,
        *,
        max_grad_norm: float | None = None,
        scheduler: Any = None,
        run_dir: Any = None,
        policy: str | Policy = "balanced",
        precision: str = "fp32",
        scaler: Any = None,
        accumulate: int = 1,
        ema: Any = None,
        clip: str = "exact",
        settle: str = "auto",
        snapshots: str = "auto",
        checkpoint_every: int | None = None,
        keep_checkpoints: int = 3,
        resume: bool = False,
        diagnose: str = "auto",
        capsule: str = "keep",
        capsule_bytes: int = 2 << 30,
        batch_key: Callable[[Any], str] | None = None,
        extra_state: Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]] | None = None,
    ) -> None:
        setup.check_arguments(
            model=model, loss_fn=loss_fn, max_grad_norm=max_grad_norm, scheduler=scheduler, precision=precision,
            scaler=scaler, accumulate=accumulate, clip=clip, settle=settle, snapshots=snapshots,
            checkpoint_every=checkpoint_every, keep_checkpoints=keep_checkpoints, run_dir=run_dir, diagnose=diagnose,
            capsule=capsule, capsule_bytes=capsule_bytes,
        )  # fmt: skip
        self.policy = Policy.named(policy)
        self.model = model
        self.optimizers = setup.as_optimizers(optimizer)
        names, parameters = setup.guarded_parameters(model, loss_fn, self.optimizers)
        self._device, self.scheduler = parameters[0].device, scheduler
        self._max_grad_norm, self._settle_mode = max_grad_norm, settle
        self._capsule, self._capsule_bytes = capsule, capsule_bytes
        self._journal = Journal(
            run_dir, names=names, run_config=setup.run_config(self.policy.name, precision, accumulate, self.optimizers)
        )
        parts = assemble(
            model, loss_fn, self.optimizers, names, parameters, self.policy, self._journal, scheduler=scheduler,
            scaler=scaler, ema=ema, precision=precision, accumulate=accumulate, max_grad_norm=max_grad_norm, clip=clip,
            extra_state=extra_state or {},
        )  # fmt: skip
        self._program, self._forward, self._mode, self._state = parts.program, parts.forward, parts.mode, parts.state
        self._gate, self._updater, self._followers = parts.gate, parts.updater, parts.followers
        self._probe, self._readout = parts.probe, parts.readout
        self._shield, self._books, self._clerk = parts.shield, parts.books, parts.clerk
        verbs = Verbs(
            run_again=self._run_again, reset_to=self._reset_to, halt=self._set_halt, step_now=lambda: self.step_number
        )  # fmt: skip
        self._recovery = Recovery(
            verbs, program=self._program, forward=self._forward, state=self._state, books=self._books,
            shield=self._shield, ring=setup.make_ring(snapshots, self._state, self._device, self.policy),
            store=setup.make_store(self._journal.path, self._state, checkpoint_every, keep_checkpoints, resume),
            can_clip=max_grad_norm is not None,
        )  # fmt: skip
        self._names, self._diagnose = {id(p): n for n, p in zip(names, parameters, strict=True)}, diagnose
        self._window = Window()
        self._pending: Flight | None = None
        self._step = self._batches_seen = 0
        self._name_of = setup.batch_namer(batch_key, self._shield)
        self._halt: Decision | None = None
        self._fallback: PlainLoop | None = None
        self._closed = self._inside = self._landed = False
        self._before_forward: Entry | None = None
        setup.claim(self.optimizers, weakref.ref(self))
        setup.settle_before_others_look(model, self.optimizers, weakref.ref(self))
        if resume and (found := self._recovery.resume()) is not None:
            self._step, self._batches_seen = found
        self._clerk.inspect_setup()

    # -- what a user calls

    def step(self, batch: Any) -> Outcome:
        """Forward, backward, check, clip, optimizer, schedule, zero_grad for one (micro-)batch.

        Raises what your own code raises, and TrainingHalted when the policy gives up; never an error of its own.
        """
        if self._closed:
            raise ClosedError("This guard is closed, so the batch was not trained on. Make a new Guard to go on.")
        if self._halt is not None:
            raise self._halted()
        key = self._name_of(batch, self._batches_seen)
        self._batches_seen += 1
        self._inside = True
        try:
            if self._fallback is not None:
                return self._fallback.step(batch, self._step)
            return self._guarded_step(batch, key)
        except TheirFault as fault:
            self._abandon_window()
            raise fault.original from fault.original.__cause__
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            self._abandon_window()
            raise
        finally:
            self._inside = False

    def settle(self) -> None:
        """Wait for the last step's answer and act on it. Called for you before a checkpoint or an evaluation."""
        if not self._inside and (self._pending is not None or len(self._window)):
            self._inside = True
            try:
                with self._mode.again():
                    if self._pending is not None:
                        self._settle_pending(self._window.fed)
                    if len(self._window):
                        self._tidy_window()
            except TheirFault as fault:
                raise fault.original from None
            except SteadyError:
                raise
            except Exception as fault:
                self._stand_down(fault)
            finally:
                self._inside = False

    @property
    def incidents(self) -> list[Incident]:
        """What went wrong so far, newest last."""
        self.settle()
        return list(self._books.incidents)

    @property
    def vitals(self) -> list[Finding]:
        """Silent trouble found by the sampled checks: lost updates, dead gradients and the like."""
        self.settle()
        return list(self._books.vitals)

    @property
    def step_number(self) -> int:
        """How many updates have been attempted."""
        return self._step

    @property
    def batches_seen(self) -> int:
        """How many batches were given to `step`; after a resume, how many to pass over in the data."""
        return self._batches_seen

    def summary(self) -> dict[str, Any]:
        """Steps, applied, skipped, rolled back, success rate, first and last bad step, and what is in force."""
        self.settle()
        return {
            **self._books.summary(),
            "halted": self._halt is not None,
            "standing_down": self._fallback is not None,
            "settles": "late" if self._late() else "now",
        }

    def close(self) -> None:
        """Settle what is pending and close the journal. Safe to call twice."""
        if self._closed:
            return
        try:
            self.settle()
        finally:
            self._closed = True
            setup.release(self.optimizers)
            with self._shield("journal", None):
                self._journal.close()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- one step

    def _guarded_step(self, batch: Any, key: str) -> Outcome:
        self._before_forward, self._landed = None, False
        kept = batch
        try:
            late = self._late()
            if self._pending is not None and not late:
                # The optimizer was fused when that step was committed and is so no longer.
                self._settle_pending(self._window.fed)
            if not len(self._window):
                self._keep_state()
            kept = pristine(batch, clone=self._program.writes_batches)
            self._recovery.tape(self._step, kept, key)
            outcome = self._feed(kept, key, late=late, original=batch)
            if self._pending is not None or len(self._window):
                self._mode.note()
        except (TheirFault, SteadyError):
            raise
        except Exception as fault:
            plain = self._stand_down(fault)
            return plain.committed(self._step - 1) if self._landed else plain.step(kept, self._step)
        if self._halt is not None:
            raise self._halted()
        return outcome

    def _keep_state(self) -> None:
        """Snapshot and checkpoint where due, of a settled state, before forward."""
        if not (self._recovery.snapshot_due(self._step) or self._recovery.checkpoint_due(self._step)):
            return
        if self._pending is not None:
            self._settle_pending(())
        if len(self._window) or self._halt is not None:
            return  # the step in flight was bad and left good micro-batches: wait for their window to end
        if self._recovery.snapshot_due(self._step):
            self._recovery.take_snapshot(self._step)
        if self._recovery.checkpoint_due(self._step):
            self._recovery.save_checkpoint(self._step, self._batches_seen - 1)

    def _feed(self, batch: Any, key: str, *, late: bool, original: Any = None, attempt: int = 0) -> Outcome:
        """One micro-batch, and the commit if it fills the window. `original` is what the user gave, the first time."""
        self._before_forward = entry = self._forward.take()
        self._clerk.before_forward(self._step)
        versions = versions_of(batch)
        terms = self._program.micro(batch, original=original)
        if versions != versions_of(batch):
            self._program.writes_batches = True
            self._books.tell_batch_written(key)
        self._forward.notice()
        self._clerk.after_forward(self._step, self._forward)
        if terms is None:
            self._forward.restore(entry)
            return passed_over(self._step)
        self._window.add(batch, key, terms, entry)
        if len(self._window) < self._program.accumulate:
            return Outcome(step=self._step, accumulating=True)
        outcome = Outcome(step=self._step, settle=self.settle)
        self._program.unscale()
        gradients = self._probe.measure()
        scale = self._program.scaler._scale if self._program.scaler is not None else None
        row = self._readout.pack(gradients, self._window.terms, scale)
        commit = self._commit_late if late else self._commit_now
        commit(outcome, gradients, row, attempt)
        return outcome

    def _commit_late(self, outcome: Outcome, gradients: Gradients | None, row: Row, attempt: int) -> None:
        """Commit under a device flag; the host learns the answer before the next commit. Does not sync."""
        if self._pending is not None and self._settle_pending(self._window.fed, outcome):
            return  # step t-1 was bad: this window has been run again and `outcome` resolved on the way
        limits = self._books.limits(self._max_grad_norm)
        flag = self._readout.flag(row, norm_limit=limits.grad_norm, loss_limit=limits.loss)
        if not self.policy.acts:
            flag = torch.zeros_like(flag)
        lr = self._updater.rate(self._books.ledger)
        self._update(gradients, flag, self._books.ledger)
        self._program.update_scale()
        self._program.zero_grad()
        seat = self._readout.send(row, flag)
        window, self._window = self._window, Window()
        self._pending = Flight(
            self._step, window, outcome, seat, row.layout, limits, lr, self._gate.take_fresh(), attempt
        )
        self._step += 1

    def _commit_now(self, outcome: Outcome, gradients: Gradients | None, row: Row, attempt: int) -> None:
        """Read first, commit then. One host read."""
        values = row.joined().tolist()
        limits = self._books.limits(self._max_grad_norm)
        lr = self._updater.rate(self._books.ledger)
        reading = reading_of(values, row.layout, step=self._step, lr=lr, batch_key=self._window.key, limits=limits)
        findings = self._books.judge(reading)
        window, self._window = self._window, Window()
        self._step += 1
        if self.policy.acts and must_refuse(reading):
            self._refuse(reading, window, outcome, attempt, gradients)
            return
        force = self._books.ledger  # a remedy that this very step takes back is in force until the next, as when late
        decision = self._books.decide(reading, findings, self._recovery.capabilities())
        undo = self._recovery.careful_copy()
        self._update(gradients, None, force)
        if undo is not None and (bad := self._recovery.poisoned_by_update(undo, window)):
            self._refuse(replace(reading, **bad), window, outcome, attempt, None)
            return
        self._program.update_scale()
        self._program.zero_grad()
        self._conclude(reading, decision, outcome, window, attempt)

    def _update(self, gradients: Gradients | None, flag: torch.Tensor | None, force: Ledger) -> None:
        self._recovery.before_update()
        self._clerk.before_update()
        self._updater(gradients, flag, force)
        self._before_forward, self._landed = None, True
        self._clerk.after_update()

    def _tidy_window(self) -> None:
        """Somebody is about to look at the model with a window unfinished: a bad micro-batch in it must not show."""
        kept = self._recovery.good_part(self._window)
        if len(kept) < len(self._window):
            self._window = Window()
            self._run_again(kept)

    # -- settlement

    def _settle_pending(self, behind: Sequence[tuple[Any, str]], outcome: Outcome | None = None) -> bool:
        """Judge the step in flight. True if it was bad: then all `behind` it has been run again, `outcome` theirs."""
        flight, self._pending = self._pending, None
        assert flight is not None
        values = self._readout.receive(flight.seat)
        reading = reading_of(
            values, flight.layout, step=flight.step, lr=flight.lr, batch_key=flight.window.key, limits=flight.limits,
            refused=values[-1] != 0.0,
        )  # fmt: skip
        findings = self._books.judge(reading)
        if not reading.refused:
            decision = self._books.decide(reading, findings, self._recovery.capabilities())
            return self._conclude(reading, decision, flight.outcome, flight.window, flight.attempt, behind, outcome)
        self._gate.forget_fresh(flight.fresh)
        self._program.zero_grad()
        self._window = Window()
        self._refuse(reading, flight.window, flight.outcome, flight.attempt, None, behind, outcome)
        return True

    def _conclude(
        self, reading: Reading, decision: Decision, outcome: Outcome, window: Window, attempt: int,
        behind: Sequence[tuple[Any, str]] = (), next_outcome: Outcome | None = None,
    ) -> bool:  # fmt: skip
        """A landed update: let schedule, EMA and books advance. True if the decision was to roll back."""
        self._followers.advance(self._window.entry)
        rolled_back = Action.ROLLBACK in decision.actions
        self._books.enter(reading, decision, applied=not rolled_back, attempt=attempt)
        self._clerk.after_step(reading)
        self._recovery.apply(decision)
        self._recovery.note_terms(reading)
        if rolled_back:
            outcome.rolled_back_to = self._recovery.roll_back(decision, next_outcome)
        outcome.resolve(decision=decision, reading=reading, applied=not rolled_back)
        if window.entry is not None:
            self._forward.release(window.entry)
        return rolled_back

    def _refuse(
        self, reading: Reading, window: Window, outcome: Outcome, attempt: int, gradients: Gradients | None,
        behind: Sequence[tuple[Any, str]] = (), next_outcome: Outcome | None = None,
    ) -> None:  # fmt: skip
        """A refused update: leave no trace of its batch, remember it, and run what came behind it again."""
        self._clerk.after_refusal()
        reading, kept = self._recovery.second_look(reading, window, gradients)
        findings = self._books.judge(reading)
        decision = self._books.decide(reading, findings, self._recovery.capabilities())
        self._books.enter(reading, decision, applied=False, attempt=attempt)
        self._recovery.quarantine(reading, window, kept)
        if not reading.scale_to_blame and self._books.capsule_due(self._capsule, reading):
            with self._shield("clinic", None):
                from .clinic.keeping import keep_capsule

                keep_capsule(
                    self._program, self._state, self._books, window, decision.findings, self._max_grad_norm,
                    batch=self._capsule, max_bytes=self._capsule_bytes,
                )  # fmt: skip
        if not reading.scale_to_blame:
            self._call_the_clinic(reading, decision, window)
        self._recovery.apply(decision)
        outcome.resolve(decision=decision, reading=reading, applied=False)
        if Action.HALT in decision.actions:
            self._halt = decision
            self._recovery.save_before_halt(self._step, self._batches_seen - len(behind))
            return
        if Action.ROLLBACK in decision.actions:
            outcome.rolled_back_to = self._recovery.roll_back(decision, next_outcome)
            return
        self._run_again([*kept, *behind], next_outcome)

    def _call_the_clinic(self, reading: Reading, decision: Decision, window: Window) -> None:
        """Find out why, while the weights are still those from before the step. Ends as if nothing had happened."""
        depth = self._books.diagnosis_due(self._diagnose, caught=reading.undone)
        if depth is not None:
            with self._shield("clinic", None):
                from .clinic.bedside import examine_window

                found = examine_window(
                    self._program, self._forward, self._state, self._books, window, reading.step, decision.findings,
                    self._names, self._max_grad_norm, self._recovery.recent_good(window), depth=depth,
                )  # fmt: skip
                self._books.enter_diagnosis(found)

    def _run_again(self, batches: Sequence[tuple[Any, str]], outcome: Outcome | None = None) -> None:
        """Feed batches again, each judged before it lands; the last one's outcome answers for `outcome`."""
        last = None
        for batch, key in batches:
            if self._halt is not None:
                break
            last = self._feed(batch, key, late=False, attempt=1)
        if outcome is not None and last is not None:
            answer_for(outcome, last)

    # -- small things

    def _reset_to(self, step: int) -> None:
        """A rollback has restored the state before this step."""
        self._step, self._window, self._pending = step, Window(), None

    def _set_halt(self, decision: Decision) -> None:
        self._halt = decision

    def _late(self) -> bool:
        if self._settle_mode == "now" or self._recovery.careful:
            return False
        if self._settle_mode == "auto" and self._device.type == "cpu":
            return False  # reading a CPU tensor costs nothing, so there is nothing to gain from being late
        return self._updater.refuses_on_device()

    def _halted(self) -> TrainingHalted:
        assert self._halt is not None
        return TrainingHalted.at(self._halt.step, self._halt.reason, self._journal.path)

    def _abandon_window(self) -> None:
        """The user's code raised, or Ctrl-C came: forget the unfinished window, leave no trace of it."""
        window, self._window = self._window, Window()
        with self._shield("forward_state", None):
            self._program.forget()
            if (entry := window.entry or self._before_forward) is not None:
                self._forward.restore(entry)

    def _stand_down(self, fault: Exception) -> PlainLoop:
        """The guard itself broke: go on as a plain loop that still refuses non-finite updates, loudly."""
        self._shield.note("guard", fault)
        self._fallback = PlainLoop(
            self._program, self.optimizers, self._max_grad_norm, self._followers.scheduler, self._followers.ema_update
        )
        flight, self._pending = self._pending, None
        entry, self._window = self._window.entry or self._before_forward, Window()
        self._program.forget()
        with self._shield("standing_down", None):
            if flight is not None and self._readout.receive(flight.seat)[-1] != 0.0:
                self._gate.forget_fresh(flight.fresh)
                entry = flight.window.entry
            elif flight is not None:
                self._followers.advance(self._window.entry)
        with self._shield("standing_down", None):
            if entry is not None:
                self._forward.restore(entry)
        return self._fallback
