"""A loop that stays as it is, guarded at `optimizer.step()`: `sg.attach(optimizer, model=model)`.

A withheld update is not made at all: the optimizer's own `step` is not called. With the model given, what its forward
passes moved since the last update (running statistics, random numbers, counters) is restored too. One read a step.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...detect.gradient_norms import Gradients
from ...detect.loop.model_calls import ModeModules, callable_parts
from ...detect.tensors.foreign_objects import getattr, isinstance
from ...detect.tensors.graph_capture import NOT_CHECKED
from ...engine import validate
from ...engine.config import GuardConfig
from ...engine.distributed.consensus import make_consensus
from ...engine.fault_barrier import FaultBarrier
from ...engine.record.notify import Notifier
from ...engine.record.run_log import RunLog
from ...engine.state.forward_state import Entry, ForwardState
from ...engine.state.rng import put_rng
from ...engine.state.training_state import TrainingState, bad_state
from ...engine.step.numerics_findings import take_earlier
from ...engine.step.sampled_checks import AUDIT_EVERY, EARLY_FORWARDS, SampledChecker
from ...engine.step.trained_parameters import GroupMembers, names_of, parameters_of
from ...journal import Journal
from ...policy import Capabilities, Policy
from ...records import Action, Decision, Finding, Incident, Reading
from ...records.errors import SteadyError
from ..build import report_checkup
from ..loops.patch_barrier import barred, closure_in, undo_all
from ..loops.patching import wrap_method, wrap_on_object
from ..loops.repeatable_model_calls import NOT_HEARD
from .attached_counts import counts_of, last_reading, name_each
from .heard_models import HeardModels
from .held_scale import HeldScales, dropped_loss
from .optimizer_loop import OptimizerLoop
from .skipped_rounds import SkippedRounds
from .snapshot_schedule import SnapshotSchedule
from .stated_limits import NO_SELF_CHECK, limits

_MAX_LOSSES = 64
_OF_NO_USE = 1000.0
"""Weights that give no finite gradient and have moved so many times their size since the last copy are of no use."""


class OptimizerGuard:
    """What `sg.attach(optimizer, ...)` returns.

    Args:
        optimizers: one or several; each one's steps are judged on their own.
        model: lets the guard name parameters, restore what forward moved, and roll back poisoned weights.
        scheduler: held for one call after a refused step.
        scaler: your GradScaler, so that the steps it drops are seen.
        run_dir, policy, notify: as for Guard.
        self_check: not possible here, and reported as such.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        *,
        model: nn.Module | None = None,
        scheduler: Any = None,
        scaler: Any = None,
        run_dir: Any = None,
        policy: str | Policy = "balanced",
        notify: Any = None,
        self_check: Any = None,
    ) -> None:
        self.policy = Policy.named(policy)
        if isinstance(model, torch.jit.ScriptModule):
            model = None  # it takes no hooks: as without a model, and that is said
        self._barrier = FaultBarrier()
        self._optimizers = validate.as_optimizers(list(optimizers), monitor=True)
        self._members = GroupMembers(self._optimizers)
        self._model = model
        self._forward = ForwardState([model] if model is not None else [])
        names = names_of(model, self._optimizers)
        config = validate.run_config(self.policy.name, "the loop's own", 1, self._optimizers)
        parameters = [p for o in self._optimizers for p in parameters_of(o)]
        facts = {"policy": self.policy, "parameters": list(names.values()), "model": model is not None}
        self.ranks = make_consensus(model or nn.Module(), parameters, facts, outside=False, num_micro=1)
        self._journal = Journal(run_dir, names=list(names.values()), run_config=config, rank=self.ranks.rank)
        if self.ranks.size > 1:
            self._journal.number_incidents_from(max(self.ranks.exchange("journal", self._journal.last_incident)))
        self._barrier.report_to(self._journal.event)
        self._scheduler, self._scaler = scheduler, scaler
        self._state = self._whole_state()
        device = parameters_of(self._optimizers[0])[0].device
        ring = validate.make_ring("auto", self._state, device, self.policy) if model is not None else None
        self._ring = ring if self.ranks.all("ring", ring is not None) else None
        every = self.policy.snapshot_every
        self._snapshot_schedule = SnapshotSchedule(self._ring, every) if self._ring is not None else None
        self._loops = [
            OptimizerLoop(o, names, self.policy, self._journal, self._barrier, self) for o in self._optimizers
        ]
        name_each(self._loops)
        for earlier in take_earlier():
            self._journal.event("posted_earlier", code=earlier.code, slug=earlier.slug, detail=earlier.detail)
        self._notifier = Notifier(notify, run=str(self._journal.path or ""))
        for loop in self._loops if self.ranks.rank == 0 else ():
            loop.log.on_incident = self._notifier
        self._checker = (
            SampledChecker(self._loops[0].log, self._barrier, model, self._optimizers) if model is not None else None
        )
        self._entry: Entry | None = None
        self._refused: set[int] = set()
        self._loss: Tensor | None = None
        self._losses: list[Tensor] = []
        self._scales = HeldScales()
        self._skips = SkippedRounds(self._skipped_by_program)
        for loop in self._loops:
            self._skips.follow(id(loop), loop.parameters)
        self._step, self._closed, self._captures, self._final_state = 0, False, False, "not checked"
        self._undo: list[Callable[[], Any]] = []
        self._models = HeardModels(self._undo, self._before_forward, self._after_forward, self._in_forward)
        validate.claim(self._optimizers, weakref.ref(self))
        self._listen(model, scheduler, scaler)
        if model is not None and self.ranks.rank == 0:
            with self._barrier("checkup", None):
                chosen = GuardConfig(scaler=scaler, scheduler=scheduler, outside=True)
                report_checkup(self._loops[0].log, model, self._optimizers, chosen)
        if self._checker is not None:
            self._checker.inspect_setup()
        if GuardConfig(self_check=self_check).steps_between_self_checks:
            self._loops[0].log.show_once(NO_SELF_CHECK)
        self._loops[0].log.show_once(limits(with_model=model is not None))

    # -- what a user calls

    @property
    def incidents(self) -> list[Incident]:
        """What went wrong so far, newest last."""
        return [incident for loop in self._loops for incident in loop.log.incidents]

    @property
    def vitals(self) -> list[Finding]:
        """Silent problems found by the sampled checks."""
        return [found for loop in self._loops for found in loop.log.vitals]

    def settle(self) -> None:
        """Nothing to wait for: every step was judged before it was applied."""

    def summary(self) -> dict[str, Any]:
        """Steps, skipped, success rate, first and last bad step, over all attached optimizers."""
        return {
            **counts_of(self._loops),
            "final_state": self._final_state,
            "not_checked": NOT_CHECKED if self._captures else "",
            "guard_faults": dict(self._barrier.faults),
            "journal_degraded": self._journal.degraded,
        }

    def close(self) -> None:
        """Take every hook off and close the journal. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        undo_all(self._undo, self._failed)
        with self._barrier("own_skips", None):
            self._skips.close()
        with self._barrier("vitals", None):
            if self._checker is not None:
                self._checker.ended()
                self._checker.close()
        with self._barrier("final_state", None):
            looked = bad_state(self._state)
            bad = [name for found in looked.values() for name in found]
            self._loops[0].log.enter_bad_buffers(self._step, looked["bad_buffers"])
            self._final_state = "finite" if not bad else "non-finite: " + ", ".join(map(str, bad[:3]))
            self._journal.event("final_state", state=self._final_state)
        validate.release(self._optimizers)
        for loop in self._loops:
            loop.release()
        if self._ring is not None:
            self._ring.clear()
        with self._barrier("notify", None):
            self._notifier.close()
        with self._barrier("journal", None):
            self._journal.close()
        self._let_go()

    def _let_go(self) -> None:
        """Keep the counts and nothing of the training: its memory is free when the program drops it, as without us."""
        self._optimizers, self._model, self._scheduler, self._scaler = (), None, None, None
        self._undo, self._losses = [], []
        self._entry = self._loss = self._ring = self._snapshot_schedule = self._checker = None
        self._forward, self._members = ForwardState([]), GroupMembers(())
        self._state = self._whole_state()
        self._skips = SkippedRounds(self._skipped_by_program)

    def __enter__(self) -> OptimizerGuard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- listening

    def _listen(self, model: nn.Module | None, scheduler: Any, scaler: Any) -> None:
        for loop in self._loops:
            make, may = functools.partial(self._around_step, loop), functools.partial(_may, loop)
            around = barred(make, self._failed, may, captured=self._captured)
            self._undo.append(wrap_on_object(loop.optimizer, "step", around))
            clear = barred(functools.partial(self._around_zero_grad, id(loop)), self._failed)
            self._undo.append(wrap_on_object(loop.optimizer, "zero_grad", clear))
        if model is not None:
            self._models.listen_to(callable_parts(model))
        if scheduler is not None:
            self._undo.append(wrap_method(scheduler, "step", self._hold_schedule, self._failed))
        if scaler is not None:
            for name, call in (("scale", self._scaled), ("step", self._watch_scaler), ("update", self._hold_scale)):
                self._undo.append(wrap_method(scaler, name, call, self._failed))

    def _failed(self, fault: Exception) -> None:
        """A fault of ours around a call of the program: what is known of the step under way is forgotten."""
        self._barrier.note("guard", fault)
        self._entry = self._loss = None
        for loop in self._loops:
            loop.end_update()

    def _captured(self) -> None:
        """An update is recorded into a CUDA graph. What its replays clear is then no batch that was skipped."""
        if not self._captures:
            self._captures, self._skips = True, SkippedRounds(self._skipped_by_program)
            self._loops[0].log.show_once(NOT_CHECKED)
            self._journal.event("not_checked", why=NOT_CHECKED)

    def _before_forward(self, model: nn.Module) -> None:
        """The first training forward since the last update: take what it may move. Does not sync."""
        if torch.is_grad_enabled() and self._skips.begins_anew(id(model), open_round=self._entry is not None):
            self._entry = None  # what the batch before moved is the program's own business
        if self._entry is not None:
            self._forward.took_again()
            return
        if not torch.is_grad_enabled():
            self._forward.aside(began=True)
            return
        self._follow_parameters()
        if self._forward.refresh():
            self._state_changed()
        for loop in self._loops:
            loop.undo_faults(self._step, before_forward=True)
        schedule = self._snapshot_schedule
        if schedule is not None and schedule.due(self._step) and self.ranks.all("snapshot", schedule.cheap()):
            schedule.take(self._step)
        self._entry = self._forward.take()
        if self._checker is not None and self._step not in self._checker.idle:
            self._checker.before_forward(self._step)

    def _in_forward(self, fault: Exception) -> None:
        """What a hook raised: a halt is for the program, a fault of ours is not."""
        if isinstance(fault, SteadyError):
            raise fault
        self._barrier.note("forward_state", fault)

    def _after_forward(self, output: Any) -> None:
        if not torch.is_grad_enabled():
            self._forward.aside(began=False) if self._entry is None else self._forward.left()
            return
        self._forward.notice()
        self._forward.left()
        self._skips.call_ended(output)
        checker = self._checker
        if checker is not None and (checker.forwards < EARLY_FORWARDS or self._step % AUDIT_EVERY == 0):
            checker.after_forward(self._step, self._forward)
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._loss = loss.detach()

    def _follow_parameters(self) -> None:
        """Parameters may have been added to an optimizer or replaced since: guard the new ones too."""
        if not self._members.changed():
            return
        names = names_of(self._model, self._optimizers)
        followed = [loop.follow(names) for loop in self._loops]
        if any(followed):
            for loop in self._loops:
                self._skips.follow(id(loop), loop.parameters)
            self._journal.set_names(list(names.values()))
            self._state_changed()

    def _state_changed(self) -> None:
        """There are other parameters or modules: forget snapshots without them."""
        self._state = self._whole_state()
        if self._ring is not None:
            self._ring = validate.make_ring("auto", self._state, self._loops[0].parameters[0].device, self.policy)
            every = self.policy.snapshot_every
            self._snapshot_schedule = SnapshotSchedule(self._ring, every) if self._ring is not None else None

    def _around_step(self, loop: OptimizerLoop, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._closed:  # a schedule that was made meanwhile still calls through here
            return original(*args, **kwargs)
        closure = closure_in(args, kwargs)
        self._refused.discard(id(loop))
        number, self._step = self._step, self._step + 1
        self._skips.updating = True
        try:
            if self._entry is None and self._model is not None:
                self._models.listen_elsewhere(self._model, parts=closure is None)
            self._follow_parameters()
            if self._ring is not None and self._ring.copying:
                self._ring.wait_for_copies()  # of what this update is about to change
        except Exception as fault:
            self._barrier.note("snapshots", fault)
        self._models.forget_calls()
        if self._checker is not None and self._entry is None and len(self._loops) == 1:
            self._checker.before_forward(number)  # the program calls parts of the model: no forward was heard
        if self._checker is not None and self._checker.sampling is not None:
            self._checker.before_update()
        try:
            if closure is not None:
                rest, named = args[1:], {key: value for key, value in kwargs.items() if key != "closure"}
                return loop.update_with_closure(
                    lambda run: original(run, *rest, **named), closure, number, self._loss_of_closure
                )
            loss = self._loss
            if loss is None and self._losses and isinstance(getattr(loop.optimizer, "found_inf", None), Tensor):
                loss = torch.stack([each.reshape(()).float() for each in self._losses]).sum()  # of a GradScaler
            return loop.update(lambda: original(*args, **kwargs), number, loss, None)
        finally:
            self._after_step(loop)

    def _loss_of_closure(self, loss: Any) -> tuple[Tensor | None, Gradients | None]:
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._loss = loss.detach().reshape(())
        return self._loss, None

    def _around_zero_grad(self, key: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._captures:
            return original(*args, **kwargs)
        self._skips.clearing(key)
        result = original(*args, **kwargs)
        self._skips.cleared(key)
        return result

    def _skipped_by_program(self, loss: float, norm: float, what: str) -> None:
        reading = Reading(step=self._step, loss=loss, grad_norm=norm)
        self._loops[0].skipped_by_program(self._step, reading, what)

    def _after_step(self, loop: OptimizerLoop) -> None:
        try:  # not `with self._barrier`: this is every step's path
            self._skips.settled(refused=id(loop) in self._refused)
        except Exception as fault:
            self._barrier.note("own_skips", fault)
        if id(loop) not in self._refused:
            self._entry = None
            checker = self._checker
            if checker is not None and loop.log.recent:
                if checker.sampling is not None:
                    checker.after_update()
                if checker.expects:
                    checker.after_step(last_reading(loop))
        self._loss = None

    # -- what the loops of the optimizers ask

    def _whole_state(self) -> TrainingState:
        names = names_of(self._model, self._optimizers)
        return TrainingState(
            parameters={names[id(p)]: p for o in self._optimizers for p in parameters_of(o)},
            optimizers=self._optimizers, forward=self._forward, scheduler=self._scheduler, scaler=self._scaler,
        )  # fmt: skip

    @property
    def alone(self) -> bool:
        return self.ranks.size == 1

    def state_of(self, loop: OptimizerLoop) -> TrainingState:
        return self._state

    def issued(self, loop: OptimizerLoop) -> None:
        """There is nothing to do meanwhile."""

    def agree(self, loop: OptimizerLoop, reading: Reading) -> Reading:
        return reading if self.ranks.size == 1 else self.ranks.agree_on_loss(reading, reading.step)

    def shown(self, loop: OptimizerLoop, reading: Reading) -> Reading:
        return reading

    def capabilities(self, loop: OptimizerLoop, reading: Reading) -> Capabilities:
        useless = not reading.bad_inputs and self._of_no_use(loop)
        return Capabilities(rollback=self._ring is not None and bool(self._ring.steps), rerun=useless)

    def _of_no_use(self, loop: OptimizerLoop) -> bool:
        """Whether a streak of bad steps is due for a rollback, which loses updates, and there is nothing to lose."""
        ledger = loop.log.ledger
        due = self.alone and not ledger.raises_rate and (ledger.streak + 1, Action.ROLLBACK) in self.policy.escalation
        newest = self._ring.good()[-1:] if due and self._ring is not None else ()
        return any(self._state.moved_since(snapshot.tree) > _OF_NO_USE for snapshot in newest)

    def withhold(self, loop: OptimizerLoop, reading: Reading) -> Reading:
        if reading.scale_to_blame:
            return reading
        if self._checker is not None:
            self._checker.after_refusal()
        self._undo_forward(loop)
        if not reading.undone:
            reading = replace(reading, **self.ranks.looked({**bad_state(self._state), "bad_inputs": ()}, reading))
        return self.ranks.name_rank(reading)

    def _undo_forward(self, loop: OptimizerLoop) -> None:
        """No trace of what the forward passes since the last update moved, but for numbers drawn by the loop itself."""
        if id(loop) not in self._refused:
            self._refused.add(id(loop))
            if self._entry is not None:
                rng = self._forward.rng_without(self._entry.place)
                if uncertain := [*self._forward.restore(self._entry), *self._forward.uncertain_draws]:
                    self._journal.event("unregistered_state_changed", names=uncertain)
                self._forward.forget_since(self._entry.place)
                put_rng(rng)
            elif self._model is not None and ModeModules(self._model):
                loop.log.show_once(NOT_HEARD)

    def diagnose(self, loop: OptimizerLoop, reading: Reading, decision: Decision) -> None:
        """Only the loop itself could run its batch again."""

    def halting(self, loop: OptimizerLoop, step: int) -> None:
        """The weights stay as they are: no batch can be run again here."""

    def ended(self, log: RunLog, weights: dict[str, Tensor]) -> None:
        """The guard was given the optimizers, and is closed by whoever made it."""

    def roll_back(self, loop: OptimizerLoop, decision: Decision) -> Decision:
        """Back to the newest good state. The batches since then are lost: this loop cannot be run again from here."""
        diverged = [found.evidence.get("best_step") for found in decision.findings if found.code == "SY203"]
        onset = next((int(step) for step in diverged if step is not None), None)
        snapshot = self.ranks.good_snapshot(self._ring, onset) if self._ring is not None else None
        if snapshot is None:
            decision = replace(decision, actions=(*decision.actions, Action.HALT))
            return loop.log.amend(decision, "no snapshot available")
        rng = self._forward.rng_without(snapshot.place)
        self._state.restore(snapshot.tree)
        self._forward.forget_since(snapshot.place)
        put_rng(rng)
        assert self._ring is not None
        self._ring.discard_after(snapshot.step)
        self._entry = None  # of a state that is no more
        self._journal.event("rolled_back", to=snapshot.step, batches_run_again=0)
        lost = max(0, decision.step - snapshot.step)
        return loop.log.amend(
            decision, f"restored the state before step {snapshot.step}; {lost} updates since are lost, because "
            "sg.attach(optimizer) cannot run batches again"
        )  # fmt: skip

    def _hold_schedule(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`scheduler.step()` right after a refused update does nothing."""
        if self._refused:
            self._refused.clear()
            return None
        return original(*args, **kwargs)

    def _watch_scaler(self, original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """GradScaler drops a step by not calling the optimizer. An overflow of its scale is counted, and nothing is
        undone, because the plain loop undoes nothing either; a bad batch is refused as any other."""
        before, loop = self._step, next((loop for loop in self._loops if loop.living is optimizer), None)
        self._refused.discard(id(loop))
        result = original(optimizer, *args, **kwargs)
        if self._checker is not None and self._step == before:
            self._checker.dropped()
        if loop is not None and self._step == before:
            with self._barrier("guard", None):
                loss = dropped_loss(self._losses, self._loss)
                good = loss is None or math.isfinite(loss)
                good = good and not bad_state(self._state)["bad_buffers"]  # no overflow of a gradient makes one bad
                if not self.ranks.all("dropped", good):
                    loss = math.nan  # on this rank or on another
                loop.dropped(before, loss, float(self._scaler.get_scale()))
            self._entry = None
            self._step += 1
            self._skips.settled(refused=True)
        self._scales.stepped(self._scaler, optimizer, refused=id(loop) in self._refused)
        return result

    def _hold_scale(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._losses = []
        return self._scales.update(original, self._scaler, *args, **kwargs)

    def _scaled(self, original: Callable[..., Any], outputs: Any) -> Any:
        """What a GradScaler scales is a loss. Does not sync."""
        if isinstance(outputs, Tensor) and outputs.numel() == 1:
            self._losses = [*self._losses[-_MAX_LOSSES:], outputs.detach()]
        return original(outputs)


def _may(loop: OptimizerLoop, closure: Any = None, *_: Any, **__: Any) -> bool:
    """Whether an update may be made that the guard failed to judge; before its closure ran there is nothing to see."""
    return not loop.engine.policy.acts or not getattr(closure, "made", True) or loop.finite()
