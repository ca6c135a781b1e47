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
from .act.books import Books
from .act.clerk import Clerk
from .act.fallback import PlainLoop
from .act.flight import Flight, Window
from .act.forward_state import Entry, ForwardState
from .act.gate import DeviceGate, why_not_on_device
from .act.ladder import Ledger
from .act.learning_rate import current_rate, scaled_learning_rate
from .act.policy import Policy
from .act.program import StepProgram, TheirFault, theirs
from .act.readout import Readout, Row, must_refuse, reading_of
from .act.recovery import Recovery, Verbs
from .act.shield import Shield
from .act.step_mode import StepMode
from .act.tape import pristine, versions_of
from .act.training_state import TrainingState
from .errors import ClosedError, SteadyError, TrainingHalted
from .journal import Journal
from .records import Action, Decision, Finding, Incident, Outcome, Reading
from .watch.gradients import GradientProbe, Gradients, clip_exact, fold_divisor

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
        batch_key: Callable[[Any], str] | None = None,
        extra_state: Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]] | None = None,
    ) -> None:
        setup.check_arguments(
            model=model, loss_fn=loss_fn, max_grad_norm=max_grad_norm, scheduler=scheduler, precision=precision,
            scaler=scaler, accumulate=accumulate, clip=clip, settle=settle, snapshots=snapshots,
            checkpoint_every=checkpoint_every, keep_checkpoints=keep_checkpoints, run_dir=run_dir, diagnose=diagnose,
        )  # fmt: skip
        self.policy = Policy.named(policy)
        self.model = model
        self.optimizers = setup.as_optimizers(optimizer)
        names, parameters = setup.guarded_parameters(model, loss_fn, self.optimizers)
        self._device = parameters[0].device
        self._max_grad_norm = max_grad_norm
        self._clip = clip
        self._settle_mode = settle
        self.scheduler = scheduler
        scaler = setup.make_scaler(precision, scaler, self._device)
        self._program = StepProgram(
            model, loss_fn, parameters=parameters, optimizers=self.optimizers, precision=precision, scaler=scaler,
            accumulate=accumulate, device=self._device,
        )  # fmt: skip
        modules = [model] + ([loss_fn] if isinstance(loss_fn, nn.Module) else [])
        self._forward = ForwardState(modules)
        self._mode = StepMode(modules)
        setup.register_scaler(self._forward, scaler)
        for name, (take, put) in (extra_state or {}).items():
            self._forward.register(name, take, put)
        self._state = TrainingState(
            parameters=dict(zip(names, parameters, strict=True)), optimizers=self.optimizers, forward=self._forward,
            scheduler=scheduler, scaler=scaler, ema=ema,
        )  # fmt: skip
        self._ema_update = setup.ema_update(ema, model)
        self._gate = DeviceGate(self.optimizers)
        self._probe = GradientProbe(parameters)
        self._readout = Readout(names, self._device)
        self._shield = Shield()
        config = setup.run_config(self.policy.name, precision, accumulate, self.optimizers)
        self._journal = Journal(run_dir, names=names, run_config=config)
        self._shield.report_to(self._journal.event)
        self._books = Books(self.policy, self._journal, self._shield, run=self._journal.run_id)
        self._clerk = Clerk(self._books, self._shield, model, self.optimizers)
        self._recovery = Recovery(
            Verbs(
                run_again=self._run_again, reset_to=self._reset_to, halt=self._set_halt, step_now=lambda: self._step
            ),
            program=self._program, forward=self._forward, state=self._state, books=self._books, shield=self._shield,
            ring=setup.make_ring(snapshots, self._state, self._device, self.policy),
            store=setup.make_store(self._journal.path, self._state, checkpoint_every, keep_checkpoints, resume),
            can_clip=max_grad_norm is not None,
        )  # fmt: skip
        self._names = {id(p): name for name, p in zip(names, parameters, strict=True)}
        self._diagnose = diagnose
        self._window = Window()
        self._pending: Flight | None = None
        self._step = 0
        self._batches_seen = 0
        self._batch_key = batch_key
        self._halt: Decision | None = None
        self._fallback: PlainLoop | None = None
        self._closed = False
        self._inside = False
        self._before_forward: Entry | None = None
        self._landed = False
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
        key = self._key(batch)
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
        ledger = self._books.ledger
        return {
            "steps": ledger.steps,
            "applied": ledger.applied,
            "skipped": ledger.skipped,
            "overflows": ledger.overflows,
            "rolled_back": ledger.rollbacks_total,
            "success_rate": ledger.success_rate,
            "first_bad_step": ledger.first_bad_step,
            "last_bad_step": ledger.last_bad_step,
            "incidents": len(self._books.incidents),
            "lr_factor": ledger.lr_factor,
            "clip_factor": ledger.clip_factor,
            "halted": self._halt is not None,
            "standing_down": self._fallback is not None,
            "guard_faults": dict(self._shield.faults),
            "journal_degraded": self._journal.degraded,
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
            self._batch_was_written(key)
        self._forward.notice()
        self._clerk.after_forward(self._step, self._forward)
        if terms is None:
            self._forward.restore(entry)
            outcome = Outcome(step=self._step)
            outcome.resolve(
                decision=Decision(step=self._step, reason="loss_fn returned None"), reading=None, applied=False
            )
            return outcome
        self._window.add(batch, key, terms, entry)
        if len(self._window) < self._program.accumulate:
            return Outcome(step=self._step, accumulating=True)
        outcome = Outcome(step=self._step, settle=self.settle)
        self._program.unscale()
        gradients = self._probe.measure()
        scale = self._program.scaler._scale if self._program.scaler is not None else None
        row = self._readout.pack(gradients, self._window.terms, scale)
        if late:
            self._commit_late(outcome, gradients, row, attempt)
        else:
            self._commit_now(outcome, gradients, row, attempt)
        return outcome

    def _commit_late(self, outcome: Outcome, gradients: Gradients | None, row: Row, attempt: int) -> None:
        """Commit under a device flag; the host learns the answer before the next commit. Does not sync."""
        if self._pending is not None and self._settle_pending(self._window.fed, outcome):
            return  # step t-1 was bad: this window has been run again and `outcome` resolved on the way
        limits = self._limits()
        flag = self._readout.flag(row, norm_limit=limits.grad_norm, loss_limit=limits.loss)
        if not self.policy.acts:
            flag = torch.zeros_like(flag)
        lr = self._rate()
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
        limits = self._limits()
        reading = reading_of(
            values, row.layout, step=self._step, lr=self._rate(), batch_key=self._window.key, limits=limits
        )
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
        """Clip and step, with what the ledger `force` has in force. With a flag the optimizers decide on the device
        whether to."""
        divisor = None
        if self._max_grad_norm is not None and gradients is not None:
            max_norm = self._max_grad_norm * force.clip_factor
            if self._clip == "folded" and flag is not None:
                divisor = fold_divisor(gradients.total, max_norm)
            else:
                clip_exact(gradients, max_norm)
        self._recovery.before_update()
        self._clerk.before_update()
        scaler = self._program.scaler
        with scaled_learning_rate(self.optimizers, force.lr_factor), theirs():
            if scaler is not None and not self.policy.acts:
                # Nothing is refused while observing, but the scaler skips what it would skip in the plain loop.
                for optimizer in self.optimizers:
                    scaler.step(optimizer)
            elif flag is not None:
                self._gate.step(flag, divisor)
            else:
                for optimizer in self.optimizers:
                    optimizer.step()
        self._before_forward, self._landed = None, True
        self._clerk.after_update()

    def _tidy_window(self) -> None:
        """Somebody is about to look at the model with a window unfinished: a bad micro-batch in it must not show."""
        window = self._window
        kept = self._recovery.good_part(window)
        if len(kept) < len(window):
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
        self._advance()
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

    def _advance(self) -> None:
        """Schedule and average move on, as they do after a landed update and only then."""
        if self.scheduler is not None:
            with theirs():
                self.scheduler.step()
        if self._ema_update is not None:
            # A step settled late has the next window's forward behind it; the average must not see its statistics.
            with theirs(), self._forward.as_of(self._window.entry):
                self._ema_update()

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
        if not reading.scale_to_blame and not reading.undone:
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
        depth = self._books.diagnosis_due(self._diagnose)
        if depth is None:
            return
        with self._shield("clinic", None):
            from .clinic.bedside import GuardPatient
            from .clinic.diagnose import diagnose

            patient = GuardPatient(
                program=self._program, forward=self._forward, state=self._state, window=window, step=reading.step,
                symptom=self._books.incidents[-1].symptom, findings=decision.findings, history=self._books.recent,
                names=self._names, max_grad_norm=self._max_grad_norm,
            )  # fmt: skip
            self._books.enter_diagnosis(diagnose(patient, depth=depth))

    def _run_again(self, batches: Sequence[tuple[Any, str]], outcome: Outcome | None = None) -> None:
        """Feed batches again, each judged before it lands; the last one's outcome answers for `outcome`."""
        last = None
        for batch, key in batches:
            if self._halt is not None:
                break
            last = self._feed(batch, key, late=False, attempt=1)
        if outcome is not None and last is not None:
            if last.accumulating:
                outcome.accumulating = True
            outcome.resolve(
                decision=last.decision or Decision(step=last.step), reading=last.reading, applied=last.applied
            )

    # -- small things

    def _reset_to(self, step: int) -> None:
        """A rollback has restored the state before this step."""
        self._step = step
        self._window = Window()
        self._pending = None

    def _set_halt(self, decision: Decision) -> None:
        self._halt = decision

    def _batch_was_written(self, key: str) -> None:
        self._program.writes_batches = True
        with self._shield("journal", None):
            self._books.show(
                f"loss_fn writes into its batch (seen at batch {key}); if that very batch must be run again it will "
                "not be the same. Later ones are copied first; write to a new tensor to spare the copy",
                kind="batch_written",
            )
            self._journal.event("batch_written", batch_key=key)

    def _limits(self) -> Any:
        return self._books.limits(self._max_grad_norm)

    def _late(self) -> bool:
        if self._settle_mode == "now" or self._recovery.careful:
            return False
        if self._settle_mode == "auto" and self._device.type == "cpu":
            return False  # reading a CPU tensor costs nothing, so there is nothing to gain from being late
        return all(why_not_on_device(optimizer) is None for optimizer in self.optimizers)

    def _rate(self) -> float:
        return current_rate(self.optimizers[0]) * self._books.ledger.lr_factor

    def _key(self, batch: Any) -> str:
        if self._batch_key is not None:
            with self._shield("batch_key", str(self._batches_seen)) as answer:
                answer.value = str(self._batch_key(batch))
            return answer.value
        return str(self._batches_seen)

    def _halted(self) -> TrainingHalted:
        assert self._halt is not None
        where = f" The journal is in {self._journal.path}." if self._journal.path else ""
        return TrainingHalted(
            f"Training was halted at step {self._halt.step}: {self._halt.reason}. "
            f"The weights are the last good ones; no bad update was applied.{where}"
        )

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
            self._program, self.optimizers, self._max_grad_norm, self.scheduler, self._ema_update
        )
        flight, self._pending = self._pending, None
        entry, self._window = self._window.entry or self._before_forward, Window()
        self._program.forget()
        with self._shield("standing_down", None):
            if flight is not None and self._readout.receive(flight.seat)[-1] != 0.0:
                self._gate.forget_fresh(flight.fresh)
                entry = flight.window.entry
            elif flight is not None:
                self._advance()
        with self._shield("standing_down", None):
            if entry is not None:
                self._forward.restore(entry)
        return self._fallback
