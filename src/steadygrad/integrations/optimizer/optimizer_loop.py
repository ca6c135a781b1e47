"""A training loop seen at `optimizer.step()` only: the adapter behind `sg.attach(optimizer)` and `steady run`.

Its numbers are read at the loop's own update; the update is made, or not made at all, and looked at afterwards. What
is known of the loop around it (its model, its batches, its past) comes from `SurroundingLoop`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from ...detect.gradient_norms import LARGE, Gradients
from ...detect.tensors.quiet_hook import registered
from ...detect.tensors.readable_tensors import only_shape
from ...engine.engine import Engine, Step, Verdict, as_decided
from ...engine.fault_barrier import FaultBarrier
from ...engine.record.run_log import RunLog
from ...engine.recovery.silent_faults import undo_faults
from ...engine.recovery.update_check import UpdateCheck
from ...engine.state.rng import put_rng, take_rng
from ...engine.state.training_state import Tree, bad_state
from ...engine.step.trained_parameters import identical, parameters_of
from ...engine.step.window import Window
from ...journal import Journal
from ...policy import Capabilities, Policy
from ...records import Action, Decision, Finding, Outcome, Reading, Severity
from ...records.errors import SteadyError
from ..loops.patch_barrier import Withheld
from .state_copy import StateCopy, evaluates_more_than_once
from .surrounding_loop import SurroundingLoop
from .update_numbers import PendingNumbers, UpdateNumbers


@dataclass(slots=True)
class _JudgedUpdate:
    """An update that may be made, or is made because the guard could not judge it (`verdict` None)."""

    step: Step
    verdict: Verdict | None
    undo: Tree | None
    fed: list[int]
    overflow: bool = False
    scale: float | None = None


class OptimizerLoop:
    """One optimizer's steps, with their own engine: history, streaks, limits and a halt belong to it alone."""

    def __init__(
        self, optimizer: Optimizer, names: dict[int, str], policy: Policy, journal: Journal, barrier: FaultBarrier,
        around: SurroundingLoop,
    ) -> None:  # fmt: skip
        self._optimizer = weakref.ref(optimizer, self._gone)
        self.parameters = parameters_of(optimizer)
        self.log = RunLog(policy, journal, barrier, run=journal.run_id, rank=journal.rank, quiet=journal.rank > 0)
        self.names = [names[id(p)] for p in self.parameters]
        self.engine = Engine(self, policy, self.log, barrier, around.ranks)
        self.around, self.step = around, 0
        self._barrier = barrier
        self._only_shapes = any(map(only_shape, self.parameters))
        self.numbers = UpdateNumbers(self._optimizer, self.parameters, self.names, self.log)
        self._rates: list[tuple[dict[str, Any], Any]] = []
        self.update_check: UpdateCheck | None = None
        self._failing: list[Tensor] | None = None
        self.refused = self.rests = False
        """Whether the last update was withheld, and whether its training has ended."""
        self.last: Reading | None = None
        """What was recorded of the last update that was applied."""
        # The optimizer keeps this object alive, and not the other way round.
        self._hook = registered(optimizer.register_load_state_dict_post_hook, self._loaded)

    def _loaded(self, _optimizer: Optimizer) -> None:
        """State was loaded: `UpdateCheck` looks at the update that follows."""

    def _gone(self, _optimizer: object) -> None:
        """The training has ended: keep nothing of it but the books."""
        weights = self.named_parameters()
        self.parameters, self.names, self.update_check = [], [], None
        self.numbers.forget()
        try:  # wherever the program is just now, nothing of this may reach it; `contextlib` may be gone by then
            self.around.ended(self.log, weights)
        except Exception:
            pass

    @property
    def living(self) -> Optimizer | None:
        """The optimizer, if it is still there: except during its step it may go at any moment."""
        return self._optimizer()

    @property
    def optimizer(self) -> Optimizer:
        found = self._optimizer()
        assert found is not None, "the optimizer of this step is gone"
        return found

    def release(self) -> None:
        """Leave no hook on the optimizer, and keep nothing of it but the books."""
        self._hook.remove()
        self.numbers.release()
        self.numbers.forget()
        if self.update_check is not None:
            self.update_check.release()
        self.parameters, self.names, self.update_check = [], [], None

    def named_parameters(self) -> dict[str, Tensor]:
        """The optimizer's parameters by name."""
        return dict(zip(self.names, self.parameters, strict=True))

    def move_to(self, around: SurroundingLoop) -> None:
        """From now on its optimizer steps in another loop."""
        self.around = around
        if self.update_check is not None:
            self.update_check.release()
        self.update_check = None

    @property
    def current(self) -> bool:
        """Whether the optimizer has the parameters that it had. Host only, tens of nanoseconds each."""
        return identical(parameters_of(self.optimizer), self.parameters)

    def follow(self, names: dict[int, str]) -> bool:
        """Whether parameters were added to the optimizer or replaced since; then they are guarded from now on."""
        if self.current:
            return False
        self.parameters = parameters = parameters_of(self.optimizer)
        self.names = [names[id(p)] for p in parameters]
        self.numbers.follow(parameters, self.names)
        self._only_shapes = any(map(only_shape, parameters))
        if self.update_check is not None:
            self.update_check.release()
        self.update_check = None
        return True

    # -- one update

    def update(
        self, make: Callable[[], Any], number: int, loss: Tensor | None, clipped: Gradients | None, *,
        holds: bool = True,
    ) -> Any:  # fmt: skip
        """The loop's `optimizer.step()`: judged, made or withheld, and looked at. `make` has an effect once at most.

        With `holds` False it cannot be withheld: it is made, and judged for the record.
        """
        self._raise_if_halted()
        if self._rehearses():
            return make()
        step = Step(number, Window(), Outcome(step=number), loss_seen=loss is not None)
        pending_numbers: PendingNumbers | None = None
        if self.numbers.on_device:
            with self._barrier("guard", pending_numbers) as sealed:
                check = self._checked()
                late = self.engine.policy.acts and holds and self.around.alone
                late = late and not check.wants_host and not check.copies_each
                if late and self.numbers.refuses_on_device():
                    sealed.value = self.numbers.seal(loss, clipped)
            if sealed.value is not None:
                result, settled = self._update_on_device(make, step, sealed.value)
                if settled:
                    return result
        judged = self._begin(step, loss, clipped, holds=holds)
        if judged is None:
            self._raise_if_halted()
            return None
        result = self._made(make)
        self._end(judged)
        return result

    def update_with_closure(
        self, make: Callable[[Callable[[], Any]], Any], closure: Callable[[], Any], number: int,
        numbers: Callable[[Any], tuple[Tensor | None, Gradients | None]],
    ) -> Any:  # fmt: skip
        """The loop's `optimizer.step(closure)`. `numbers(loss)` gives its loss and what was clipped, after it ran.

        torch's optimizers evaluate once and first: a bad evaluation leaves the step before anything is updated. Others
        may evaluate several times, so everything is copied first and restored if the step turns out bad.
        """
        self._raise_if_halted()
        if self._rehearses():
            return make(closure)
        step = Step(number, Window(), Outcome(step=number))
        if evaluates_more_than_once(self.optimizer):
            return self._update_and_look(make, closure, step, numbers)
        begun: list[_JudgedUpdate] = []

        def evaluate() -> Any:
            loss = closure()
            unjudged: _JudgedUpdate | None = _JudgedUpdate(step, None, None, [])
            with self._barrier("guard", unjudged) as judged:
                judged.value = self._begin(step, *numbers(loss), holds=True)
            if judged.value is None or (judged.value is unjudged and not self.finite()):
                raise Withheld(loss)
            begun.append(judged.value)
            return loss

        try:
            result = self._made(lambda: make(evaluate))
        except Withheld as withheld:
            self._raise_if_halted()
            return withheld.loss
        if begun:
            self._end(begun[-1])
        return result

    def _update_and_look(
        self, make: Callable[[Callable[[], Any]], Any], closure: Callable[[], Any], step: Step,
        numbers: Callable[[Any], tuple[Tensor | None, Gradients | None]],
    ) -> Any:  # fmt: skip
        """Copy everything, let the step run with as many evaluations as it wants, and undo it if anything is bad.

        LBFGS without a line search is left at its first bad evaluation: all that follows comes of it. A line search may
        try a bad point and reject it. The weights there, in the middle of the step, are kept for the diagnosis.
        """
        kept: StateCopy | None = None
        with self._barrier("update_check", kept) as copied:
            if self._may_undo():
                copied.value = StateCopy(self.optimizer, self.around.state_of(self))
        losses: list[Tensor] = []
        clipped: list[Gradients | None] = [None]
        returned: list[Any] = []
        searches = bool(self.optimizer.param_groups[0].get("line_search_fn"))
        leaves = isinstance(self.optimizer, LBFGS) and not searches

        def evaluate() -> Any:
            loss = closure()
            returned.append(loss)
            bad = False
            with self._barrier("guard", bad) as answer:
                seen, clipped[0] = numbers(loss)
                if seen is not None:
                    losses.append(seen)
                if copied.value is not None and self._failing is None and self._bad_evaluation(seen):
                    self._failing = [parameter.detach().clone() for parameter in self.parameters]
                    answer.value = leaves
            if answer.value:
                raise Withheld(returned[0])
            return loss

        try:
            result = self._made(lambda: make(evaluate))
        except Withheld as withheld:
            result = withheld.loss
        with self._barrier("guard", None):
            finite = all(bool(torch.isfinite(loss)) for loss in (losses[:1] if searches else losses))
            finite = finite and (searches or self._failing is None)
            loss = losses[0 if searches else -1] if losses else None
            read = self.numbers.read(step.number, loss, None, can_undo=copied.value is not None)
            reading = self.around.agree(self, read)
            if losses and not finite:
                reading = replace(reading, loss=math.nan)
            step.loss_seen = loss is not None
            bad = bad_state(self.around.state_of(self))
            if copied.value is not None and (not finite or bad["bad_parameters"] or bad["bad_state"]):
                copied.value.restore()
                made = bad if finite and self._failing is None else {}  # after a bad loss they only follow
                refused = self.engine.refuse(step, replace(reading, undone=True, **made))
                if Action.ROLLBACK not in refused.decision.actions:
                    rng = take_rng()
                    copied.value.restore()  # what the evaluations before the last one moved, such as statistics
                    put_rng(rng)
            else:
                self._failing = None
                self.engine.conclude(step, self.engine.judge(step, reading, made=True))
        self._raise_if_halted()
        return result

    def _bad_evaluation(self, loss: Tensor | None) -> bool:
        return (loss is not None and not bool(torch.isfinite(loss))) or not self.finite()

    @contextmanager
    def _at_failing_evaluation(self) -> Iterator[None]:
        """Inside, the weights are those at which a closure gave the first bad value, if it did in the middle of a
        step."""
        failing, self._failing = self._failing, None
        before = [parameter.detach().clone() for parameter in self.parameters] if failing is not None else []
        try:
            for parameter, weights in zip(self.parameters, failing or (), strict=failing is not None):
                parameter.data.copy_(weights)
            yield
        finally:
            for parameter, weights in zip(self.parameters, before, strict=failing is not None):
                parameter.data.copy_(weights)

    def _begin(
        self, step: Step, loss: Tensor | None, clipped: Gradients | None, *, holds: bool
    ) -> _JudgedUpdate | None:
        """Judge an update that is due; None if it must not be made: then it has been dealt with."""
        step.loss_seen = loss is not None
        fed = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        try:  # not `with self._barrier`: this is every step's path
            read = self.numbers.read(step.number, loss, clipped, can_undo=(may_undo := self._may_undo()))
            reading = self.around.agree(self, read)
            if self._dropped_by_scaler(reading):
                return _JudgedUpdate(step, None, None, fed, overflow=True, scale=reading.loss_scale)
            if holds and (found := self.undo_faults(step.number)) is not None and self.around.alone:
                reading = replace(reading, posted=(replace(found, severity=Severity.FATAL),))
            verdict = self.engine.judge(step, reading, made=not holds)
            if not verdict.applies:
                return None
            held, large = self.log.ledger.rate_held, reading.grad_norm > LARGE
            undo = self._checked().before(fed, may_copy=may_undo, hold_rate=held, large=large)
            return _JudgedUpdate(step, self._shown(verdict), undo, fed)
        except SteadyError:
            raise
        except Exception as fault:
            self._barrier.note("guard", fault)
        if self.engine.policy.acts and holds and not self.finite():
            return None  # the guard itself failed: finiteness alone is checked
        return _JudgedUpdate(step, None, None, fed)

    def _shown(self, verdict: Verdict) -> Verdict:
        """The verdict with the reading as it is to be recorded."""
        reading = self.around.shown(self, verdict.reading)
        return verdict if reading is verdict.reading else replace(verdict, reading=reading)

    def _end(self, judged: _JudgedUpdate) -> None:
        """An update was made: look at it, record it, undo it if it made something bad."""
        try:
            if judged.overflow:
                self.count_overflow(judged.step.number, judged.scale)
            elif judged.verdict is not None:
                bad = self._checked().after(judged.fed, judged.undo) if self.engine.policy.acts else None
                if bad is None:
                    self.engine.conclude(judged.step, judged.verdict)
                else:
                    self._undo(judged, judged.verdict.reading, bad)
        except SteadyError:
            raise
        except Exception as fault:
            self._barrier.note("guard", fault)
        self._raise_if_halted()

    def _undo(self, judged: _JudgedUpdate, reading: Reading, bad: dict[str, Any]) -> None:
        """An update made something non-finite: restore what was copied before it, and refuse it after all."""
        if judged.undo is not None:
            gradients = [p.grad for p in self.parameters]
            self.around.state_of(self).restore(judged.undo)
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient  # the loop clears them in its own time
        self.engine.refuse(judged.step, replace(reading, **bad))

    def _update_on_device(
        self, make: Callable[[], Any], step: Step, pending_numbers: PendingNumbers
    ) -> tuple[Any, bool]:
        """Under a device flag; the numbers are read behind the update, so the device does not wait. Whether it is
        settled comes with its result: one that the device refused for an infinite norm is looked at by the host."""
        try:
            result = self._made(make)
        finally:
            self.numbers.disarm()
        settled = True
        with self._barrier("guard", settled) as answer:
            self.around.issued(self)
            reading = self.numbers.open(pending_numbers, step.number)
            if reading.refused and reading.grad_norm == math.inf and math.isfinite(reading.loss):
                answer.value = False
            else:
                verdict = self.engine.judge(step, reading, made=True)
                if verdict.applies:
                    self.engine.conclude(step, self._shown(verdict))
        self._raise_if_halted()
        return result, answer.value

    def _made(self, make: Callable[[], Any]) -> Any:
        self.begin_update()
        try:
            return make()
        finally:
            self.end_update()

    def _rehearses(self) -> bool:
        """Whether the program only tries shapes, on tensors without values: there is nothing to judge."""
        self._only_shapes = self._only_shapes and any(map(only_shape, self.parameters))
        return self._only_shapes

    def _raise_if_halted(self) -> None:
        if self.engine.halt is not None:
            raise self.engine.halted()

    def _checked(self) -> UpdateCheck:
        if self.update_check is None:
            self.update_check = UpdateCheck([self.optimizer], self.around.state_of(self), self.around.ranks)
            self.update_check.failed = lambda fault: self._barrier.note("silent_faults", fault)
        return self.update_check

    def undo_faults(self, number: int, *, before_forward: bool = False) -> Finding | None:
        """Restore what a memory fault changed since the last update; what was found. Asked before the update: then the
        gradients are those of the changed state, and the update is withheld. On a CPU also before the first forward."""
        shadow = self.update_check.shadow if self.update_check is not None and self.engine.policy.acts else None
        if shadow is None or (before_forward and not shadow.on_host):
            return None
        try:  # not `with self._barrier`: this is every step's path
            return undo_faults(shadow, self.log, number)
        except Exception as fault:
            self._barrier.note("silent_faults", fault)
            return None

    def _may_undo(self) -> bool:
        return self.around.alone and self.engine.policy.acts

    def admit(self, number: int, loss: Tensor | None, clipped: Gradients | None) -> bool:
        """Whether an update that is made elsewhere may be made. It is recorded as applied and not looked at."""
        self._raise_if_halted()
        step = Step(number, Window(), Outcome(step=number), loss_seen=loss is not None)
        verdict = self.engine.judge(step, self.around.agree(self, self.numbers.read(number, loss, clipped)))
        if verdict.applies:
            self.engine.conclude(step, verdict)
        self._raise_if_halted()
        return verdict.applies

    def skipped_by_program(self, number: int, reading: Reading, what: str) -> None:
        """The loop left out a batch or an update by itself."""
        self.engine.record_skip(Step(number, Window(), Outcome(step=number)), reading, what)

    def dropped(self, number: int, loss: float | None, scale: float | None) -> None:
        """The loop's GradScaler dropped an update. With a finite loss that is an overflow of the scale, which leaves
        everything else as the plain loop leaves it; else the bad loss is an incident."""
        overflow = loss is None or math.isfinite(loss)
        reading = Reading(
            step=number, loss=0.0 if loss is None else loss, grad_norm=math.inf if overflow else math.nan,
            loss_scale=scale, refused=True, scale_to_blame=True if overflow else None,
        )  # fmt: skip
        step = Step(number, Window(), Outcome(step=number), loss_seen=loss is not None)
        if self.engine.policy.acts:
            self.engine.refuse(step, reading)
        else:
            self.engine.conclude(step, self.engine.judge(step, reading, made=True))

    # -- what the engine asks

    def capabilities(self, reading: Reading) -> Capabilities:
        return self.around.capabilities(self, reading)

    def withhold(self, step: Step, reading: Reading) -> Reading:
        self.refused = not reading.scale_to_blame
        return self.around.withhold(self, reading)

    def quarantine(self, step: Step, reading: Reading) -> None:
        """The samples are written down with the diagnosis."""

    def diagnose(self, step: Step, reading: Reading, decision: Decision) -> None:
        with self._at_failing_evaluation():
            self.around.diagnose(self, reading, decision)

    choose_rate = as_decided  # its batches cannot be run again

    def roll_back(self, step: Step, decision: Decision) -> Decision:
        return self.around.roll_back(self, decision)

    def proceed(self, step: Step, decision: Decision) -> None:
        """The loop goes on with its next batch by itself."""

    def applied(self, step: Step, verdict: Verdict) -> None:
        """The loop steps its schedule by itself."""
        self.last = verdict.reading

    def halting(self, step: Step) -> None:
        self.around.halting(self, step.number)

    # -- around an update

    def _dropped_by_scaler(self, reading: Reading) -> bool:
        """Whether a fused optimizer under a GradScaler will refuse an overflow by itself: its loss is finite."""
        found = getattr(self._optimizer(), "found_inf", None)
        return isinstance(found, Tensor) and math.isfinite(reading.loss) and float(found) > 0

    def finite(self) -> bool:
        """The bare check that is left when the guard itself has failed."""
        grads = [p.grad for p in self.parameters if p.grad is not None and not only_shape(p)]
        return all(bool(torch.isfinite(grad.detach().to_dense()).all()) for grad in grads)

    def begin_update(self) -> None:
        """Put a lowered learning rate in force for this update; repair a summed `found_inf`."""
        found = getattr(self._optimizer(), "found_inf", None)
        if isinstance(found, Tensor):
            # GradScaler sums the flag over devices, and a kernel given 2.0 writes the bad update.
            self.optimizer.found_inf = found.clamp(max=1.0)  # type: ignore[attr-defined]
        factor = self.log.ledger.lr_factor
        if factor != 1.0:
            self._rates = [(group, group["lr"]) for group in self.optimizer.param_groups]
            for group, rate in self._rates:
                group["lr"] = rate * factor

    def end_update(self) -> None:
        for group, rate in self._rates:
            group["lr"] = rate
        self._rates = []

    def count_overflow(self, step: int, scale: float | None = None) -> None:
        """Enter a step that the user's GradScaler dropped."""
        ledger = self.log.ledger
        self.log.ledger = ledger.but(steps=ledger.steps + 1, skipped=ledger.skipped + 1, overflows=ledger.overflows + 1)
        self.log.journal.event("loss_scale_overflow", step=step, scale=scale)
